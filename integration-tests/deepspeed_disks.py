"""Trains on two ranks with optimizer state, and parameters, on a disk (NVMe); writes what came out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from deepspeed_rows import begin
from deepspeed_runs import plain
from torch import nn

from accel import Accelerator, DeepSpeedPlugin
from accel_backends.unwrap import stepped_optimizer
from accel_state.errors import AccelError

CLIP, RATE, NUM_STEPS = 0.05, 0.01, 4
KINDS = ("states", "states and parameters")


def make_model() -> nn.Module:
    """Return a model whose weights are large enough for a disk, between others that are not."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(512, 1300), nn.Tanh(), nn.Linear(1300, 512))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return AdamW that makes little of gradients which are rounding errors."""
    return torch.optim.AdamW(model.parameters(), lr=RATE, eps=1e-4)


def rows() -> torch.Tensor:
    return torch.randn(16, 512, generator=torch.Generator().manual_seed(1))


class Run:
    """A new run that keeps what ``kind`` says below ``folder``; or else on the CPU."""

    def __init__(self, folder: Path, kind: str, **section: Any) -> None:
        place = {"device": "nvme", "nvme_path": str(folder)}
        section |= {"stage": 3, "stage3_param_persistence_threshold": 0}
        section["offload_optimizer"] = place if kind in KINDS else {"device": "cpu"}
        if kind == "states and parameters":
            section["offload_param"] = {**place, "buffer_size": 2_000_000}
        config = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": section}
        self.accelerator: Accelerator = begin(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config))
        model = make_model()
        self.model, self.optimizer = self.accelerator.prepare(model, make_optimizer(model))

    def train(self, num_steps: int = NUM_STEPS) -> list[float]:
        norms = []
        own = rows()[self.accelerator.process_index :: 2]
        for _ in range(num_steps):
            self.accelerator.backward(self.model(own).square().mean())
            norms.append(float(self.accelerator.clip_grad_norm_(self.model.parameters(), CLIP)))
            self.optimizer.step()
            self.optimizer.zero_grad()
        return norms

    def values(self) -> dict[str, Any]:
        """Return the weights, and what the optimizer keeps of them."""
        strategy = self.accelerator.strategy
        state = plain(strategy.optimizer_tensors(stepped_optimizer(self.optimizer))["state"])
        kept = {f"{number} {kind}": value for number, one in state.items() for kind, value in one.items()}
        return {**self.accelerator.get_state_dict(self.model), **kept}

    @property
    def is_on_disk(self) -> bool:
        return any(not flat.numel() for flat in self.model.optimizer.fp32_partitioned_groups_flat)


def resume(folder: Path, kind: str) -> dict[str, Any]:
    run = Run(folder, kind)
    norms = run.train()
    found: dict[str, Any] = {"is on disk": run.is_on_disk, "norms": norms, "saved": run.values()}
    run.accelerator.save_state(folder / "checkpoint")
    run.accelerator.save_model(run.model, folder / "weights")
    try:
        run.accelerator.save_state(folder / "files", checkpoint_format="deepspeed")
    except AccelError as error:
        found["refusal"] = str(error)
    found["later norms"], found["later"] = run.train(2), run.values()
    run.accelerator.load_state(folder / "checkpoint")  # where there are states already
    found["back"] = run.values()
    run.accelerator.free_memory()
    for name, other in (("resumed", kind), ("on the CPU", "none")):
        run = Run(folder, other)
        run.accelerator.load_state(folder / "checkpoint", verify=True)
        found[name] = run.values()
        found[f"{name}, later norms"], found[f"{name}, later"] = run.train(2), run.values()
        run.accelerator.free_memory()
    return found


def refusal(folder: Path) -> str:
    """Return why parameters of many sizes are not put into one group."""
    try:
        Run(folder, "states", sub_group_size=10**9)
    except AccelError as error:
        return str(error)
    return ""


def main() -> None:
    place = Path(sys.argv[1])
    results: dict[str, Any] = {kind: resume(place / kind, kind) for kind in KINDS}
    results["one group"] = refusal(place)
    accelerator = begin()
    torch.save(results, place / f"{accelerator.process_index}.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main()
