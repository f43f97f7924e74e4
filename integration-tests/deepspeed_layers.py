"""Trains on four ranks, two TP ranks each, with DeepSpeed, and writes what came out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from deepspeed_rows import begin
from libraries import tiny
from torch.nn import functional as F
from torch.utils.data import DataLoader

from accel import DeepSpeedPlugin, ParallelismConfig
from accel.utils import set_seed
from accel_state.errors import ConfigError

ACCUMULATE, CLIP, RATE, NUM_BATCHES = 2, 0.5, 0.01, 4

SECTIONS: dict[str, dict[str, Any]] = {
    "zero0": {"stage": 0},
    "zero1": {"stage": 1},
    "zero2": {"stage": 2},
    "offload2": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "bf16": {"stage": 1},
}


def rows() -> list[dict[str, torch.Tensor]]:
    """Return sequences for four micro-batches of two on each of two data ranks."""
    ids = torch.randint(4, 20, (NUM_BATCHES * 4, 8), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": one} for one in ids]


def loss_of(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=ids).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


MODELS: dict[str, dict[str, Any]] = {
    "odd": {"intermediate_size": 49, "num_key_value_heads": 4},
    "tied": {"tie_word_embeddings": True, "attention_bias": True},
}
"""Sizes that two ranks do not divide, and one weight at both ends next to biases."""


RESUMED = ("zero0", "zero2")
CASES = {"zero0": "tied", "zero1": "odd", "zero2": "tied", "offload2": "odd", "bf16": "odd"}
TOLERANCES = {"bf16": 2e-2}
"""How far a parameter or loss may be from that of one process, where it is not 1e-6."""


def make_optimizer(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return AdamW that makes little of gradients which are rounding errors, as those of biases of keys."""
    return torch.optim.AdamW(parameters, lr=RATE, eps=1e-3)


class Run:
    """A run of two data ranks with two TP ranks each, by the config or by `ParallelismConfig`."""

    def __init__(self, section: str, kind: str, *, by_config: bool = False, num_sharing: int = 2) -> None:
        config: dict[str, Any] = {"zero_optimization": SECTIONS[section]}
        if by_config:
            config["tensor_parallel"] = {"autotp_size": num_sharing}
        sizes = None if by_config else ParallelismConfig(dp_shard_size=4 // num_sharing, tp_size=num_sharing)
        self.accelerator = begin(
            deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config),
            parallelism_config=sizes,
            gradient_accumulation_steps=ACCUMULATE,
            mixed_precision="bf16" if section == "bf16" else "no",
        )
        model = tiny.make_model(**MODELS[kind])
        for parameter in model.parameters():
            parameter.data.add_(self.accelerator.process_index)  # the values of rank 0 count
        model.model.norm.weight.requires_grad_(False)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = make_optimizer(trained)
        loader = DataLoader(rows(), batch_size=num_sharing)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)

    def train(self, *, first: int = 0, last: int = NUM_BATCHES, by_items: bool = False) -> dict[str, Any]:
        losses, norms, seen = [], [], []
        for index, batch in enumerate(self.loader):
            if not first <= index < last:
                continue
            with self.accelerator.accumulate(self.model):
                loss = loss_of(self.model, batch["input_ids"])
                self.accelerator.backward(loss, num_items=batch["input_ids"].shape[0] if by_items else None)
                norm = self.accelerator.clip_grad_norm_(self.model.parameters(), CLIP)
                norms += [] if norm is None else [float(norm)]
                self.optimizer.step()
                self.optimizer.zero_grad()
            losses.append(loss.detach())
            seen.append(self.accelerator.gather_for_metrics(batch["input_ids"]))
        return {"losses": losses, "norms": norms, "seen": torch.cat(seen), "state": self.state()}

    def end(self, **options: Any) -> dict[str, Any]:
        """Train, and release the engine."""
        found = self.train(**options)
        self.accelerator.free_memory()
        return found

    def state(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.accelerator.get_state_dict(self.model).items()}


def train(section: str, kind: str) -> dict[str, Any]:
    """Train as one process would, by the config or by `ParallelismConfig`."""
    return Run(section, kind, by_config=kind == "tied").end(by_items=kind == "tied")


def resume(section: str, folder: Path) -> dict[str, Any]:
    """Save in the middle, and continue: from there, with more data ranks in place of shared layers, and back."""
    run = Run(section, "odd")
    run.train(last=2)
    run.accelerator.save_state(folder / section)
    run.accelerator.save_model(run.model, folder / f"weights-{section}")
    saved = run.state()
    whole = run.end(first=2)
    other = Run(section, "odd")
    other.accelerator.load_state(folder / section, verify=True)
    resumed = other.end(first=2)
    four = Run(section, "odd", num_sharing=1)
    four.accelerator.load_state(folder / section)
    of_four = four.state()
    four.accelerator.save_state(folder / f"four-{section}")
    four.accelerator.free_memory()
    back = Run(section, "odd")
    back.accelerator.load_state(folder / f"four-{section}")
    return {"saved": saved, "whole": whole, "resumed": resumed, "of four": of_four, "back": back.end(first=2)}


def refused() -> str:
    """Return what an Accelerator says for which other ranks would share layers than for the one before it."""
    before = Run("zero1", "odd")
    try:
        Run("zero1", "odd", num_sharing=1)
    except ConfigError as error:
        return str(error)
    finally:
        before.accelerator.free_memory()
    return "nothing"


def main() -> None:
    place = Path(sys.argv[1])
    results: dict[str, Any] = {section: train(section, kind) for section, kind in CASES.items()}
    results |= {f"resume-{section}": resume(section, place) for section in RESUMED}
    results["refused"] = refused()
    accelerator = begin()
    torch.save(results, place / f"{accelerator.process_index}.pt")
    accelerator.end_training()


if __name__ == "__main__":
    set_seed(0)
    main()
