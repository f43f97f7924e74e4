"""Microseconds of a step of a tiny model, and how often it makes the host wait for the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tools.gpu.measuring import LIBRARIES, Bench, Row, Step, ratio

KINDS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "accumulation over 4": {"accumulate": 4},
    "clipping, scheduler": {"clips": True},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "fp16, fused AdamW": {"precision": "fp16", "fused": True},
    "accumulation, `num_items` on the device": {"accumulate": 4, "items": True},
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Parts:
    """Model, optimizer, scheduler and one batch."""

    def __init__(self, bench: Bench, *, fused: bool = False) -> None:
        torch.manual_seed(0)
        self.model: Any = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(bench.device)
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=fused)
        self.scheduler: Any = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0)
        self.inputs = torch.randn(32, 64, device=bench.device)
        self.labels = torch.randint(10, (32,), device=bench.device)
        self.items = torch.tensor(32.0, device=bench.device)


def plain_step(
    bench: Bench, parts: Parts, *, accumulate: int = 1, clips: bool = False, precision: str = "no",
    items: bool = False,
) -> Step:  # fmt: skip
    """Return the loop body as plain PyTorch has it."""
    scaler = torch.amp.GradScaler(bench.device.type, enabled=precision == "fp16")
    dtype = DTYPES.get(precision)
    total, calls = parts.items * accumulate, 0

    def step() -> torch.Tensor:
        nonlocal calls
        with torch.autocast(bench.device.type, dtype=dtype, enabled=dtype is not None):
            outputs = parts.model(parts.inputs)
        loss = cross_entropy(outputs.float(), parts.labels)
        loss = loss * parts.items / total if items else loss / accumulate if accumulate > 1 else loss
        torch.autograd.backward(scaler.scale(loss))
        calls += 1
        if calls % accumulate == 0:
            if clips:
                torch.nn.utils.clip_grad_norm_(parts.model.parameters(), 1.0)
            scaler.step(parts.optimizer)
            scaler.update()
            if clips:
                parts.scheduler.step()
            parts.optimizer.zero_grad()
        return loss

    return step


def prepared_step(
    bench: Bench, parts: Parts, library: str, *, accumulate: int = 1, clips: bool = False, precision: str = "no",
    items: bool = False,
) -> Step:  # fmt: skip
    """Return the loop body as a user of a library writes it."""
    accelerator = bench.accelerator(
        library, mixed_precision=precision, gradient_accumulation_steps=accumulate
    )
    model, optimizer = accelerator.prepare(parts.model, parts.optimizer)
    scheduler = accelerator.prepare(parts.scheduler) if clips else None
    more = {"num_items": parts.items} if items else {}

    def micro_batch() -> torch.Tensor:
        loss = cross_entropy(model(parts.inputs), parts.labels)
        accelerator.backward(loss, **more)
        if clips:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        optimizer.zero_grad()
        return loss

    def accumulated() -> torch.Tensor:
        with accelerator.accumulate(model):
            return micro_batch()

    return accumulated if accumulate > 1 else micro_batch


def step(bench: Bench) -> None:
    """Put a row for each kind of loop."""
    for kind, settings in KINDS.items():
        options = dict(settings)
        fused = options.pop("fused", False)
        parts, steps = {}, {}
        for library in LIBRARIES:
            if library == "accelerate" and "items" in options:
                continue  # it has no such argument
            parts[library] = Parts(bench, fused=fused)
            if library == "plain":
                steps[library] = plain_step(bench, parts[library], **options)
            else:
                steps[library] = prepared_step(bench, parts[library], library, **options)
            for _ in range(20):
                steps[library]()
        num_steps, num_rounds = (100, 7) if bench.is_cuda else (5, 3)
        seconds = bench.turns(steps, num_steps=num_steps, num_rounds=num_rounds)
        row = Row(f"a step of a tiny model: {kind}", "µs", "≤ 1.15 of plain, no further host wait")
        row.figures = {name: round(1e6 * each, 1) for name, each in seconds.items()}
        apart = max(
            (one - other).abs().max().item()
            for one, other in zip(
                parts["accel"].model.parameters(), parts["plain"].model.parameters(), strict=True
            )
        )
        if apart > 2e-2:
            row.wrong.append(f"weights differ by {apart:.3g}")
        if bench.is_cuda:
            waits, places = bench.host_waits(steps["accel"])
            plain_waits, _ = bench.host_waits(steps["plain"])
            row.note = f"host waits a step: {waits:g}, plain {plain_waits:g}"
            if waits > plain_waits:
                row.wrong.append(f"{waits:g} host waits a step, plain {plain_waits:g}, at {places}")
        if bench.has_goals and ratio(seconds["accel"], seconds["plain"]) > 1.15:
            row.wrong.append(f"{ratio(seconds['accel'], seconds['plain'])} of plain's step")
        bench.put(row)
