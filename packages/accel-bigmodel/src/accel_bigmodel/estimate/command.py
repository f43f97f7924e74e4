"""Estimate the memory that a model takes to load, to train and to run.

The command `accel estimate-memory`: torch is imported only when it runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from accel_ops.byte_sizes import convert_bytes

DTYPES = ("float32", "float16", "bfloat16", "int8", "int4")
DEFAULT_DTYPES = ("float32", "float16", "int8", "int4")
STRATEGIES = ("ddp", "fsdp", "zero1", "zero2", "zero3", "offload")
HEADERS = ["dtype", "Largest Layer", "Total Size", "Training using Adam"]


class EstimateMemoryCommand:
    """``accel estimate-memory``."""

    help = "Estimate the memory that a model takes to load, to train and to run"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the flags."""
        add = parser.add_argument
        add("model_name", help="a folder, a config.json, the name of a model on the Hub, or `module:factory`")
        add("--library_name", choices=("timm", "transformers"), help="the library that defines the model")
        add(
            "--dtypes", nargs="+", default=list(DEFAULT_DTYPES), choices=DTYPES, help="dtypes to show, one row each"
        )  # fmt: skip
        add("--trust_remote_code", action="store_true", help="run code from the Hub; read it first")
        add(
            "--strategy",
            choices=STRATEGIES,
            help="show the memory of training per process with this strategy",
        )
        add("--num_processes", type=int, default=1, help="number of training processes (default 1)")
        add("--batch_size", type=int, help="show the KV cache for this batch size")
        add("--sequence_length", type=int, default=512, help="tokens per sample (default 512)")
        add("--json", action="store_true", help="print bytes as JSON")

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the estimate."""
        from accel_bigmodel.estimate.memory import create_empty_model, estimate

        model = create_empty_model(arguments.model_name, arguments.library_name, arguments.trust_remote_code)
        sizes = estimate(
            model, dtypes=arguments.dtypes, strategy=arguments.strategy, num_processes=arguments.num_processes,
            batch_size=arguments.batch_size, sequence_length=arguments.sequence_length,
        )  # fmt: skip
        result = {"model": arguments.model_name, **sizes}
        sys.stdout.write((json.dumps(result, indent=2) if arguments.json else as_text(result)) + "\n")
        return 0


command = EstimateMemoryCommand()


def estimate_command_parser(subparsers: Any = None) -> argparse.ArgumentParser:
    """Return the parser of ``accel estimate-memory``, or add it to ``subparsers``.

    The parsed arguments have `estimate_command` as ``func``.
    """
    parser: argparse.ArgumentParser = (
        argparse.ArgumentParser(prog="accel estimate-memory", description=command.help)
        if subparsers is None
        else subparsers.add_parser("estimate-memory", help=command.help)
    )
    command.add_arguments(parser)
    parser.set_defaults(func=estimate_command)
    return parser


def estimate_command(args: argparse.Namespace) -> None:
    """Print the estimate for ``args``; missing flags take their defaults."""
    given = {name: value for name, value in vars(args).items() if name != "model_name"}
    asked = estimate_command_parser().parse_args([args.model_name], argparse.Namespace(**given))
    command.run(asked)


def gather_data(args: Any) -> list[list[Any]]:
    """Return a row for each dtype: its name, bytes of the largest layer, of the model, and of training with Adam.

    Args:
        args: Arguments parsed by `estimate_command_parser`: ``model_name`` and, optionally, ``library_name``,
            ``dtypes`` and ``trust_remote_code``.
    """
    from accel_bigmodel.estimate.memory import create_empty_model, estimate_training_usage, model_bytes

    model = create_empty_model(
        args.model_name, getattr(args, "library_name", None), getattr(args, "trust_remote_code", False)
    )
    full = model_bytes(model, "float32")["total"]
    rows = []
    for dtype in getattr(args, "dtypes", None) or DEFAULT_DTYPES:
        sizes = model_bytes(model, dtype)
        rows.append([dtype, sizes["largest_layer"], sizes["total"], estimate_training_usage(full, dtype)])
    return rows


def as_text(result: Mapping[str, Any]) -> str:
    """Return the table, followed by lines for training and running."""
    rows = [
        [dtype, *(convert_bytes(sizes[key]) for key in ("largest_layer", "total", "training_adam"))]
        for dtype, sizes in result["dtypes"].items()
    ]
    lines = [create_ascii_table(HEADERS, rows, f"Memory Usage for loading `{result['model']}`")]
    if "training" in result:
        parts = result["training"]
        sizes = ", ".join(
            f"{name} {convert_bytes(parts[name])}"
            for name in ("parameters", "gradients", "optimizer", "working", "total")
        )
        host = f"; on the host {convert_bytes(parts['host'])}" if parts["host"] else ""
        lines.append(
            f"Each of {parts['num_processes']} with {parts['strategy']}, float32, Adam: {sizes}{host}"
        )
    if "running" in result:
        parts = result["running"]
        shape = f"batch {parts['batch_size']}, {parts['sequence_length']} tokens"
        if not parts["kv_cache"]:
            lines.append("No KV cache: the model has no config that describes attention.")
        for dtype, size in parts["kv_cache"].items():
            lines.append(f"KV cache in {dtype} ({shape}): {convert_bytes(size)}")
    return "\n".join(lines)


def create_ascii_table(headers: Sequence[str], rows: Sequence[Sequence[Any]], title: str) -> str:
    """Return a table with a title, box-drawing borders and centered cells."""
    columns = [[str(header), *(str(row[number]) for row in rows)] for number, header in enumerate(headers)]
    widths = [max(len(cell) for cell in column) for column in columns]
    spare = len(title) - (sum(widths) + len(widths) - 1)
    if spare > 0:
        widths[-1] += spare
    inner = sum(widths) + len(widths) - 1

    def line(cells: Sequence[str]) -> str:
        return "│" + "│".join(cell.center(width) for cell, width in zip(cells, widths, strict=True)) + "│"

    def rule(left: str, middle: str, right: str) -> str:
        return left + middle.join("─" * width for width in widths) + right

    body = [line([column[number] for column in columns]) for number in range(len(rows) + 1)]
    return "\n".join(
        ["┌" + "─" * inner + "┐", "│" + title.center(inner) + "│", rule("├", "┬", "┤"), body[0],
         rule("├", "┼", "┤"), *body[1:], rule("└", "┴", "┘")]
    )  # fmt: skip
