"""torch's Muon for the matrices of the blocks and AdamW for the rest."""

from __future__ import annotations

from typing import Any

import torch

from tools.gpu.llama import ONE_B, Size, make_llama, make_step, measure_training
from tools.gpu.measuring import Bench, NotHereError, Row, Step, near, ratio


def run(bench: Bench) -> None:
    """Put one row."""
    if not hasattr(torch.optim, "Muon"):
        raise NotHereError(f"torch {torch.__version__} has no Muon")
    size = Size.of(bench, {**ONE_B, "hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 8192,
                           "num_hidden_layers": 12}, batch=8, length=1024)  # fmt: skip
    tokens = size.tokens(bench)

    def make(library: str) -> Step:
        model = make_llama(bench, size.config(), torch.float32)
        named = dict(model.named_parameters())
        inner = {name for name, one in named.items() if "layers." in name and one.ndim == 2}
        optimizers: list[Any] = [
            torch.optim.Muon([named[name] for name in named if name in inner], lr=1e-3, weight_decay=0.0),
            torch.optim.AdamW([named[name] for name in named if name not in inner], lr=1e-3),
        ]
        if library == "plain":

            def forward() -> Any:
                with torch.autocast(bench.device.type, dtype=torch.bfloat16):
                    return model(input_ids=tokens, labels=tokens).loss

            return make_step(forward, lambda loss: loss.backward(), optimizers)
        accelerator = bench.accelerator(library, mixed_precision="bf16")
        prepared, *optimizers = accelerator.prepare(model, *optimizers)
        return make_step(
            lambda: prepared(input_ids=tokens, labels=tokens).loss, accelerator.backward, optimizers
        )

    trained = {
        library: measure_training(bench, lambda library=library: make(library), size)  # type: ignore[misc]
        for library in ("plain", "accel")
    }
    row = Row("Muon and AdamW, 0.2B Llama, bf16", "tokens/s", "≥ 0.98 of plain")
    row.figures = {name: round(each.tokens_per_s) for name, each in trained.items()}
    if not near(trained["accel"].losses, trained["plain"].losses, tolerance=0.02):
        row.wrong.append(f"losses {trained['accel'].losses[:3]}, plain {trained['plain'].losses[:3]}")
    if bench.has_goals and ratio(row.figures["accel"], row.figures["plain"]) < 0.98:
        row.wrong.append(f"{ratio(row.figures['accel'], row.figures['plain'])} of plain")
    bench.put(row)
