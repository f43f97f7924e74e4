"""Four blocks of a Llama-8B in 8 bits by Transformer Engine, next to bf16."""

from __future__ import annotations

import importlib.util

from tools.gpu.cases.fp8 import prepared_step, size_of_blocks
from tools.gpu.llama import measure_training
from tools.gpu.measuring import Bench, NotHereError, Row, near, ratio


def run(bench: Bench) -> None:
    """Put one row; the bound is bf16."""
    if importlib.util.find_spec("transformer_engine") is None:
        raise NotHereError("Transformer Engine is not installed")
    if not bench.is_cuda:
        raise NotHereError("Transformer Engine needs a GPU")
    from accel.utils import TERecipeKwargs

    size = size_of_blocks(bench)
    in_8_bits = measure_training(
        bench, lambda: prepared_step(bench, size, "accel", "fp8", [TERecipeKwargs()]), size
    )
    in_bf16 = measure_training(bench, lambda: prepared_step(bench, size, "accel", "bf16", []), size)
    row = Row("fp8 by Transformer Engine, four blocks of Llama-8B", "tokens/s", "≥ bf16")
    row.figures = {"bound": round(in_bf16.tokens_per_s), "accel": round(in_8_bits.tokens_per_s)}
    if not near(in_8_bits.losses, in_bf16.losses, tolerance=0.05):
        row.wrong.append(f"losses {in_8_bits.losses[:3]}, bf16 {in_bf16.losses[:3]}")
    if bench.has_goals and in_8_bits.tokens_per_s < in_bf16.tokens_per_s:
        row.wrong.append(f"{ratio(in_8_bits.tokens_per_s, in_bf16.tokens_per_s)} of bf16")
    bench.put(row)
