"""TP ranks with DeepSpeed must train as one process does on full layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed_runs import assert_equal, begin, plugin, steps, trained, weights_of
from libraries import tiny
from safetensors.torch import load_file
from torch.nn import functional as F
from torch.utils.data import DataLoader

from accel import ParallelismConfig
from accel_state.errors import ConfigError

pytestmark = pytest.mark.engine("deepspeed")
ACCUMULATE, CLIP, NUM_BATCHES = 2, 0.5, 4

SECTIONS: dict[str, dict[str, Any]] = {
    "zero0": {"stage": 0},
    "zero1": {"stage": 1},
    "zero2": {"stage": 2},
    "offload2": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "bf16": {"stage": 1},
}
MODELS: dict[str, dict[str, Any]] = {
    "odd": {"intermediate_size": 49, "num_key_value_heads": 4},
    "tied": {"tie_word_embeddings": True, "attention_bias": True},
}
"""Sizes that two ranks do not divide, and one weight at both ends next to biases."""


def rows() -> torch.Tensor:
    """Return sequences for four micro-batches of two on each of two data ranks."""
    return torch.randint(4, 20, (NUM_BATCHES * 4, 8), generator=torch.Generator().manual_seed(0))


def loss_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=ids).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def make(kind: str, offset: int = 0) -> tuple[Any, torch.optim.Optimizer]:
    """Return a model, and AdamW that makes little of gradients which are rounding errors."""
    model = tiny.make_model(**MODELS[kind])
    for parameter in model.parameters():
        parameter.data.add_(offset)
    model.model.norm.weight.requires_grad_(False)
    return model, torch.optim.AdamW(trained(model), lr=0.01, eps=1e-3)


class Run:
    """A run of two data ranks with two TP ranks each, or with one; tied models by DeepSpeed's config."""

    def __init__(self, section: str, kind: str = "odd", *, tp_size: int = 2) -> None:
        self.is_tied, options = kind == "tied", {}
        if not self.is_tied:
            options["parallelism_config"] = ParallelismConfig(dp_shard_size=4 // tp_size, tp_size=tp_size)
        sections = {"tensor_parallel": {"autotp_size": tp_size}} if self.is_tied else {}
        self.accelerator = begin(
            plugin(sections={**sections, "train_micro_batch_size_per_gpu": "auto"}, **SECTIONS[section]),
            gradient_accumulation_steps=ACCUMULATE,
            mixed_precision="bf16" if section == "bf16" else "no",
            **options,
        )
        model, optimizer = make(kind, offset=self.accelerator.process_index)  # the values of rank 0 count
        loader = DataLoader([{"input_ids": one} for one in rows()], batch_size=tp_size)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)

    def train(self, first: int = 0, last: int = NUM_BATCHES) -> tuple[list[torch.Tensor], list[float], Any]:
        """Return the losses, the norms and the weights after these batches."""
        losses, norms, seen = [], [], []
        for index, batch in enumerate(self.loader):
            ids = batch["input_ids"]
            if not first <= index < last:
                continue
            with self.accelerator.accumulate(self.model):
                losses.append(loss_of(self.model, ids))
                self.accelerator.backward(losses[-1], num_items=len(ids) if self.is_tied else None)
                norm = self.accelerator.clip_grad_norm_(self.model.parameters(), CLIP)
                norms += [] if norm is None else [float(norm)]
                steps(self.optimizer)
            seen.append(self.accelerator.gather_for_metrics(ids))
        if (first, last) == (0, NUM_BATCHES):
            assert_equal(torch.cat(seen), rows())  # each sample is gathered once
        return [loss.detach() for loss in losses], norms, weights_of(self.accelerator, self.model)


def train(section: str, kind: str, tolerance: float) -> None:
    """Train on TP ranks, and with plain PyTorch on the micro-batches of both data ranks."""
    run = Run(section, kind)
    losses, norms, weights = run.train()
    alone, optimizer = make(kind)
    ids = rows().split(2)
    for index in range(NUM_BATCHES):
        pair = [loss_of(alone, one) for one in ids[2 * index : 2 * index + 2]]
        (sum(pair) / (2 * ACCUMULATE)).backward()
        assert_equal(losses[index].float(), pair[run.accelerator.process_index // 2].detach(), atol=tolerance)
        if (index + 1) % ACCUMULATE == 0:
            norm = float(torch.nn.utils.clip_grad_norm_(alone.parameters(), CLIP))
            assert norms.pop(0) == pytest.approx(norm, rel=10 * tolerance)
            steps(optimizer)
    assert not norms
    if run.accelerator.is_main_process:
        assert list(weights) == list(alone.state_dict())
        weights = {name: value.float() for name, value in weights.items()}
        assert_equal(weights, dict(alone.state_dict()), atol=tolerance)
    run.accelerator.free_memory()


@pytest.mark.parametrize(
    ("section", "kind", "tolerance"),
    [
        ("zero0", "tied", 1e-6),
        ("zero1", "odd", 1e-6),
        ("zero2", "tied", 1e-6),
        ("offload2", "odd", 1e-6),
        ("bf16", "odd", 2e-2),
    ],
)
def test_tp_ranks_train_as_one_process(world, section, kind, tolerance):
    world(4).run(train, section, kind, tolerance)


def refuse_another_number() -> None:
    before = Run("zero1")
    with pytest.raises(ConfigError, match=r"(?s)`tp_size` is 1.*free_memory"):
        Run("zero1", tp_size=1)
    before.accelerator.free_memory()


def test_another_number_of_tp_ranks_is_refused_while_the_first_lives(world):
    world(4).run(refuse_another_number)


def resume(section: str, folder: Path) -> None:
    """Save in the middle, and continue: from there, with more data ranks in place of TP ranks, and back."""
    run = Run(section)
    *_, saved = run.train(last=2)
    run.accelerator.save_state(str(folder / "saved"))
    run.accelerator.save_model(run.model, str(folder / "weights"))
    wanted = run.train(first=2)
    run.accelerator.free_memory()
    for place, tp_size in (("saved", 2), ("saved", 1), ("four", 2)):
        other = Run(section, tp_size=tp_size)
        other.accelerator.load_state(str(folder / place), verify=True)
        assert_equal(weights_of(other.accelerator, other.model), saved)
        if tp_size == 1:
            other.accelerator.save_state(str(folder / "four"))
        else:
            assert_equal(other.train(first=2), wanted)
        other.accelerator.free_memory()
    if run.accelerator.is_main_process:
        weights = load_file(folder / "weights" / "model.safetensors")
        assert_equal(weights, saved)
        full = make("odd")[0].state_dict()
        assert {name: value.shape for name, value in weights.items()} == {
            name: value.shape for name, value in full.items()
        }


@pytest.mark.parametrize("section", ["zero0", "zero2"])
def test_a_checkpoint_has_full_weights_and_continues_with_or_without_tp_ranks(world, tmp_path, section):
    world(4).run(resume, section, tmp_path)
