"""Trains on each rank as a user would, with one kind of ZeRO after the other, and writes what came out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from accel import Accelerator, DeepSpeedPlugin
from accel_state import AcceleratorState, GradientState

sys.path.append(str(Path(__file__).parents[1]))  # for `tools`, if this is run as a script
from tools.harness.models import make_batches, make_model

ENGINES: dict[str, dict[str, Any]] = {
    "zero0": {"zero_stage": 0},
    "zero1": {"zero_stage": 1},
    "zero2": {"zero_stage": 2},
    "zero3": {"zero_stage": 3},
    "offload2": {"zero_stage": 2, "offload_optimizer_device": "cpu"},
    "offload3": {"zero_stage": 3, "offload_optimizer_device": "cpu", "offload_param_device": "cpu"},
    "hpz3": {
        "hf_ds_config": {
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "zero_optimization": {
                "stage": 3,
                "zero_hpz_partition_size": 2,
                "stage3_param_persistence_threshold": 0,
            },
        }
    },
}
MODELS = ("odd", "tied", "adapted")
ACCUMULATE, CLIP, NUM_BATCHES, NUM_EPOCHS = 3, 0.1, 5, 2


def rows() -> torch.Tensor:
    """Return the data of one epoch: five batches of four for each of two ranks."""
    return torch.cat(make_batches(NUM_BATCHES * 2))


def trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def begin(**arguments: Any) -> Accelerator:
    """Return an Accelerator of a process that has none."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    return Accelerator(cpu=True, **arguments)


def train(kind: str, engine: str, *, precision: str = "no") -> dict[str, Any]:
    accelerator = begin(
        deepspeed_plugin=DeepSpeedPlugin(**ENGINES[engine]),
        gradient_accumulation_steps=ACCUMULATE,
        mixed_precision=precision,
    )
    model = make_model(kind)
    optimizer = torch.optim.AdamW(trained(model), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    loader = DataLoader(rows().bfloat16() if precision == "bf16" else rows(), batch_size=4)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    losses, norms, rates = [], [], []
    for _ in range(NUM_EPOCHS):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(batch).square().mean()
                accelerator.backward(loss)
                norm = accelerator.clip_grad_norm_(model.parameters(), CLIP)
                if accelerator.sync_gradients:
                    norms.append(float(norm))
                    assert model.get_global_grad_norm() == norm
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                rates.append(scheduler.get_last_lr()[0])
            losses.append(loss.detach())
    state = accelerator.get_state_dict(model)
    accelerator.free_memory()
    return {"losses": losses, "norms": norms, "rates": rates, "state": dict(state)}


def main() -> None:
    folder = Path(sys.argv[1])
    results = {f"{engine}-{kind}": train(kind, engine) for engine in ENGINES for kind in MODELS}
    results |= {f"bf16-zero{stage}": train("odd", f"zero{stage}", precision="bf16") for stage in (1, 2, 3)}
    accelerator = begin()
    torch.save(results, folder / f"{accelerator.process_index}.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main()
