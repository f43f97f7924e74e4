"""Microseconds of a step of a tiny model, and how often it makes the host wait for the device."""

from __future__ import annotations

from contextlib import nullcontext
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


class Loop:
    """Model, optimizer, scheduler and one batch, and the body of a loop over it."""

    def __init__(
        self, bench: Bench, library: str, *, accumulate: int = 1, clips: bool = False, precision: str = "no",
        items: bool = False, fused: bool = False,
    ) -> None:  # fmt: skip
        torch.manual_seed(0)
        self.model: Any = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(bench.device)
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=fused)
        self.scheduler: Any = (
            torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1.0) if clips else None
        )
        self.inputs = torch.randn(32, 64, device=bench.device)
        self.labels = torch.randint(10, (32,), device=bench.device)
        self.items = torch.tensor(32.0, device=bench.device) if items else None
        self.device_type, self.accumulate, self.precision = bench.device.type, accumulate, precision
        self.weights = list(self.model.parameters())
        self.step: Step = self._plain_step() if library == "plain" else self._step_through(bench, library)
        for _ in range(20):
            self.step()

    def _plain_step(self) -> Step:
        dtype, calls = DTYPES.get(self.precision), 0
        scaler = torch.amp.GradScaler(self.device_type) if self.precision == "fp16" else None
        total: Any = None if self.items is None else self.items * self.accumulate

        def step() -> torch.Tensor:
            nonlocal calls
            with nullcontext() if dtype is None else torch.autocast(self.device_type, dtype=dtype):
                outputs = self.model(self.inputs)
            loss = cross_entropy(outputs if dtype is None else outputs.float(), self.labels)
            if self.items is not None:
                loss = loss * self.items / total
            elif self.accumulate > 1:
                loss = loss / self.accumulate
            torch.autograd.backward(loss if scaler is None else scaler.scale(loss))
            calls += 1
            if calls % self.accumulate:
                return loss
            if self.scheduler is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            if scaler is None:
                self.optimizer.step()
            else:
                scaler.step(self.optimizer)
                scaler.update()
            if self.scheduler is not None:
                self.scheduler.step()
            self.optimizer.zero_grad()
            return loss

        return step

    def _step_through(self, bench: Bench, library: str) -> Step:
        accelerator = bench.accelerator(
            library, mixed_precision=self.precision, gradient_accumulation_steps=self.accumulate
        )
        model, optimizer = accelerator.prepare(self.model, self.optimizer)
        scheduler = None if self.scheduler is None else accelerator.prepare(self.scheduler)
        more = {} if self.items is None else {"num_items": self.items}

        def micro_batch() -> torch.Tensor:
            loss = cross_entropy(model(self.inputs), self.labels)
            accelerator.backward(loss, **more)
            if scheduler is not None:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            optimizer.zero_grad()
            return loss

        def accumulated() -> torch.Tensor:
            with accelerator.accumulate(model):
                return micro_batch()

        return accumulated if self.accumulate > 1 else micro_batch


def step(bench: Bench) -> None:
    """Put a row for each kind of loop; Accelerate has no `num_items`."""
    for kind, options in KINDS.items():
        libraries = LIBRARIES[: 2 if "items" in options else 3]
        loops = {library: Loop(bench, library, **options) for library in libraries}
        steps = {library: loop.step for library, loop in loops.items()}
        num_steps, num_rounds = (100, 7) if bench.is_cuda else (5, 3)
        seconds = bench.turns(steps, num_steps=num_steps, num_rounds=num_rounds)
        row = Row(f"a step of a tiny model: {kind}", "µs", "≤ 1.15 of plain, no additional host wait")
        row.figures = {name: round(1e6 * each, 1) for name, each in seconds.items()}
        pairs = zip(loops["accel"].weights, loops["plain"].weights, strict=True)
        apart = max((one - other).abs().max().item() for one, other in pairs)
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
