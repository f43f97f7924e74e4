"""The result of ``accel estimate-memory``, as data and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from accel_bigmodel.estimate.choices import DEFAULT_DTYPES
from accel_bigmodel.estimate.forward_memory import example_inputs, kv_cache_bytes, measure_activations
from accel_bigmodel.estimate.models import create_empty_model
from accel_bigmodel.estimate.training import estimate_training_usage, training_bytes
from accel_bigmodel.planning.sizes import compute_module_sizes, get_max_layer_size
from accel_bigmodel.tensors.module_tensors import named_module_tensors
from accel_ops.byte_sizes import convert_bytes

HEADERS = ["dtype", "Largest Layer", "Total Size", "Training using Adam"]


@dataclass(frozen=True, slots=True)
class EstimateOptions:
    """What to estimate; the fields are the flags of the command."""

    name: str
    dtypes: tuple[str, ...] = DEFAULT_DTYPES
    strategy: str | None = None
    num_processes: int = 1
    batch_size: int | None = None
    sequence_length: int = 512


def estimate(model: nn.Module, options: EstimateOptions) -> dict[str, Any]:
    """Return the bytes by dtype, and those of training and running if requested.

    Args:
        model: A model on the meta device.
        options: What to estimate.
    """
    result: dict[str, Any] = {
        "model": options.name,
        "dtypes": {d: _sizes(model, d) for d in options.dtypes},
    }
    if options.strategy is not None:
        trained = sum(p.numel() * 4 for p in model.parameters() if p.requires_grad)
        full = _sizes(model, "float32")
        per_process = training_bytes(
            options.strategy, weights=full["total"], trained=trained, largest_layer=full["largest_layer"],
            num_processes=options.num_processes,
        )  # fmt: skip
        result["training"] = {
            "strategy": options.strategy, "num_processes": options.num_processes, **per_process.as_dict()
        }  # fmt: skip
    if options.batch_size is not None:
        result["running"] = _running(model, options, options.batch_size)
    return result


def gather_data(args: Any) -> list[list[Any]]:
    """Return a row for each dtype: its name, bytes of the largest layer, of the model, and of training with Adam.

    Args:
        args: Arguments parsed by `estimate_command_parser`: ``model_name`` and, optionally, ``library_name``,
            ``dtypes`` and ``trust_remote_code``.
    """
    model = create_empty_model(
        args.model_name, getattr(args, "library_name", None), getattr(args, "trust_remote_code", False)
    )
    full = _sizes(model, "float32")["total"]
    rows = []
    for dtype in getattr(args, "dtypes", None) or DEFAULT_DTYPES:
        sizes = _sizes(model, dtype)
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
        kept, peak = convert_bytes(parts["activations"]), convert_bytes(parts["activations_peak"])
        lines.append(f"Activations kept for the backward ({shape}): {kept}; when it begins {peak}")
        for dtype, size in parts["kv_cache"].items():
            lines.append(f"KV cache in {dtype} ({shape}): {convert_bytes(size)}")
    return "\n".join(lines)


def create_ascii_table(headers: Sequence[str], rows: Sequence[Sequence[Any]], title: str) -> str:
    """Return a table with a title, drawn with boxes, its cells centred."""
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


def _sizes(model: nn.Module, dtype: str) -> dict[str, int]:
    sizes = compute_module_sizes(model, dtype=dtype)
    parts: list[Any] = [*named_module_tensors(model), *model.named_children()]
    largest, names = get_max_layer_size(parts, sizes, getattr(model, "_no_split_modules", None))
    return {
        "largest_layer": largest if names else sizes[""],
        "total": sizes[""],
        "training_adam": 4 * sizes[""],
    }


def _running(model: nn.Module, options: EstimateOptions, batch_size: int) -> dict[str, Any]:
    inputs = example_inputs(model, batch_size=batch_size, sequence_length=options.sequence_length)
    config = getattr(model, "config", None)
    caches = {
        dtype: kv_cache_bytes(
            config, batch_size=batch_size, sequence_length=options.sequence_length, dtype=dtype
        )
        for dtype in options.dtypes
    }
    activations = measure_activations(model, inputs)
    return {
        "batch_size": batch_size,
        "sequence_length": options.sequence_length,
        "activations": activations.kept,
        "activations_peak": activations.peak,
        "kv_cache": {dtype: size for dtype, size in caches.items() if size is not None},
    }
