"""The answer of ``accel estimate-memory``: as data and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from accel_bigmodel.estimate.choices import SHOWN
from accel_bigmodel.estimate.models import create_empty_model
from accel_bigmodel.estimate.running import example_inputs, kv_cache_bytes, measure_activations
from accel_bigmodel.estimate.training import estimate_training_usage, training_bytes
from accel_bigmodel.planning.sizes import compute_module_sizes, get_max_layer_size
from accel_bigmodel.tensors.module_tensors import named_module_tensors
from accel_ops.byte_sizes import convert_bytes

HEADERS = ["dtype", "Largest Layer", "Total Size", "Training using Adam"]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked; the fields are the flags of the command."""

    name: str
    dtypes: tuple[str, ...] = SHOWN
    strategy: str | None = None
    num_processes: int = 1
    batch_size: int | None = None
    sequence_length: int = 512


def estimate(model: nn.Module, question: Question) -> dict[str, Any]:
    """Return bytes, by dtype and by what was asked beside it.

    Args:
        model: On the meta device.
        question: What is asked.
    """
    answer: dict[str, Any] = {
        "model": question.name,
        "dtypes": {d: _sizes(model, d) for d in question.dtypes},
    }
    if question.strategy is not None:
        trained = sum(p.numel() * 4 for p in model.parameters() if p.requires_grad)
        full = _sizes(model, "float32")
        spread = training_bytes(
            question.strategy, weights=full["total"], trained=trained, largest_layer=full["largest_layer"],
            num_processes=question.num_processes,
        )  # fmt: skip
        answer["training"] = {
            "strategy": question.strategy, "num_processes": question.num_processes, **spread.as_dict()
        }  # fmt: skip
    if question.batch_size is not None:
        answer["running"] = _running(model, question, question.batch_size)
    return answer


def gather_data(args: Any) -> list[list[Any]]:
    """Return a row for each dtype: its name, bytes of the largest layer, of the model, and of training with Adam.

    Args:
        args: What `estimate_command_parser` parsed: ``model_name``, and if they are there ``library_name``,
            ``dtypes`` and ``trust_remote_code``.
    """
    model = create_empty_model(
        args.model_name, getattr(args, "library_name", None), getattr(args, "trust_remote_code", False)
    )
    full = _sizes(model, "float32")["total"]
    rows = []
    for dtype in getattr(args, "dtypes", None) or SHOWN:
        sizes = _sizes(model, dtype)
        rows.append([dtype, sizes["largest_layer"], sizes["total"], estimate_training_usage(full, dtype)])
    return rows


def as_text(answer: Mapping[str, Any]) -> str:
    """Return the table, and a line for each other part."""
    rows = [
        [dtype, *(convert_bytes(sizes[key]) for key in ("largest_layer", "total", "training_adam"))]
        for dtype, sizes in answer["dtypes"].items()
    ]
    lines = [create_ascii_table(HEADERS, rows, f"Memory Usage for loading `{answer['model']}`")]
    if "training" in answer:
        parts = answer["training"]
        told = ", ".join(
            f"{name} {convert_bytes(parts[name])}"
            for name in ("parameters", "gradients", "optimizer", "working", "total")
        )
        host = f"; on the host {convert_bytes(parts['host'])}" if parts["host"] else ""
        lines.append(
            f"Each of {parts['num_processes']} with {parts['strategy']}, float32, Adam: {told}{host}"
        )
    if "running" in answer:
        parts = answer["running"]
        shape = f"batch {parts['batch_size']}, {parts['sequence_length']} tokens"
        kept, peak = convert_bytes(parts["activations"]), convert_bytes(parts["activations_peak"])
        lines.append(f"Activations kept for the backward ({shape}): {kept}; when it begins {peak}")
        for dtype, size in parts["kv_cache"].items():
            lines.append(f"KV cache in {dtype} ({shape}): {convert_bytes(size)}")
    return "\n".join(lines)


def create_ascii_table(headers: Sequence[str], rows: Sequence[Sequence[Any]], title: str) -> str:
    """Return a table with a title, drawn in boxes, each cell in the middle."""
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


def _running(model: nn.Module, question: Question, batch_size: int) -> dict[str, Any]:
    inputs = example_inputs(model, batch_size=batch_size, sequence_length=question.sequence_length)
    config = getattr(model, "config", None)
    caches = {
        dtype: kv_cache_bytes(
            config, batch_size=batch_size, sequence_length=question.sequence_length, dtype=dtype
        )
        for dtype in question.dtypes
    }
    activations = measure_activations(model, inputs)
    return {
        "batch_size": batch_size,
        "sequence_length": question.sequence_length,
        "activations": activations.kept,
        "activations_peak": activations.peak,
        "kv_cache": {dtype: size for dtype, size in caches.items() if size is not None},
    }
