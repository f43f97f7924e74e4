"""Two SP ranks of DeepSpeed must train as one process does on full sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.nn.functional as collectives
from deepspeed_runs import assert_equal, begin, plugin, steps, weights_of
from libraries import tiny
from torch.nn import functional as F
from torch.utils.data import DataLoader

from accel import ParallelismConfig
from accel_state import DeepSpeedSequenceParallelConfig

pytestmark = pytest.mark.engine("deepspeed")
CLIP, RATE, LENGTH = 0.5, 0.1, 8


def rows() -> list[dict[str, torch.Tensor]]:
    """Return six sequences, of which tokens at the beginning do not count: other numbers of them on each rank."""
    ids = torch.randint(4, 20, (6, LENGTH), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    for index, row in enumerate(labels):
        row[: index + 1] = -100
    return [{"input_ids": one, "labels": label} for one, label in zip(ids, labels, strict=True)]


def padded_left() -> list[dict[str, torch.Tensor]]:
    """Return the sequences as a generation has them: padding comes first."""
    masks = torch.ones(6, LENGTH, dtype=torch.int64)
    masks[::2, :3] = 0
    return [
        {"input_ids": row["input_ids"], "attention_mask": mask}
        for row, mask in zip(rows(), masks, strict=True)
    ]


def train_alone() -> tuple[list[Any], dict[str, torch.Tensor], torch.Tensor]:
    """Train with plain PyTorch; return losses with norms, the weights, and what they compute in the end."""
    model = tiny.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    found = []
    for batch in DataLoader(rows(), batch_size=2):
        logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
        labels = batch["labels"][:, 1:].flatten()
        loss = F.cross_entropy(logits.flatten(0, 1), labels, ignore_index=-100)
        loss.backward()
        found.append((loss.detach(), torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        steps(optimizer)
    [held_out] = DataLoader(padded_left(), batch_size=6)
    with torch.no_grad():
        return found, model.state_dict(), model.eval()(**held_out).logits


class Run:
    """A run of two SP ranks, whose model notes random numbers that are drawn in it."""

    def __init__(self, stage: int) -> None:
        sizes = {"train_micro_batch_size_per_gpu": 2, "train_batch_size": "auto"}
        handler = DeepSpeedSequenceParallelConfig(sp_attn_implementation="sdpa")
        self.accelerator = begin(
            plugin(stage, sizes),
            parallelism_config=ParallelismConfig(sp_size=2, sp_backend="deepspeed", sp_handler=handler),
        )
        model, self.drawn = tiny.make_model(), []
        optimizer, loader = torch.optim.SGD(model.parameters(), lr=RATE), DataLoader(rows(), batch_size=2)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        layers = self.accelerator.unwrap_model(self.model).get_input_embeddings()
        layers.register_forward_hook(lambda *_: self.drawn.append(torch.rand(3)))

    def step(self, batch: dict[str, torch.Tensor], *, by_items: bool) -> tuple[torch.Tensor, Any]:
        """Return the loss of all ranks and the norm; the loss is that of one rank if it is weighed by items."""
        labels = batch.pop("shift_labels")
        logits = self.model(**batch).logits
        summed = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
        num = (labels != -100).sum()
        if by_items:
            self.accelerator.backward(summed / num.clamp(min=1), num_items=num)
            loss = self.accelerator.reduce(summed.detach()) / self.accelerator.reduce(num)
        else:
            loss = sum(collectives.all_gather(summed)) / sum(collectives.all_gather(num))
            self.accelerator.backward(loss)
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), CLIP)
        steps(self.optimizer)
        return loss.detach(), norm


def train(stage: int, folder: Path, alone: Any) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Train, save after one step and continue there; return the random numbers in the model, and after it."""
    run, by_items = Run(stage), bool(stage % 2)
    rank = run.accelerator.process_index
    expected, expected_weights, expected_logits = alone
    found = []
    for number, batch in enumerate(run.loader):
        assert all(
            batch[name].shape == (2, LENGTH // 2) for name in ("input_ids", "shift_labels", "position_ids")
        )
        assert batch["position_ids"].tolist() == [list(range(4 * rank, 4 * rank + 4))] * 2
        found.append(run.step(batch, by_items=by_items))
        assert_equal(found[-1][0], expected[number][0], atol=1e-6)
        assert float(found[-1][1]) == pytest.approx(float(expected[number][1]), rel=1e-5)
        if number == 0:
            run.accelerator.save_state(str(folder))
    assert len(found) == len(expected)
    weights, after = weights_of(run.accelerator, run.model), torch.rand(3)
    if rank == 0:
        assert_equal(weights, dict(expected_weights), atol=1e-6)
    run.model.eval()
    # Prepared alone, so that its sequences are full.
    held_out = run.accelerator.prepare(DataLoader(padded_left(), batch_size=3))
    with torch.no_grad():
        logits = torch.cat([run.model(**batch).logits for batch in held_out])
    assert_equal(logits, expected_logits, atol=1e-5)
    assert next(iter(run.loader))["input_ids"].shape == (2, LENGTH)  # in evaluation
    run.accelerator.free_memory()
    resumed = Run(stage)
    resumed.accelerator.load_state(str(folder))
    later = resumed.accelerator.skip_first_batches(resumed.loader, 1)
    assert_equal([resumed.step(batch, by_items=by_items) for batch in later], found[1:])
    assert_equal(weights_of(resumed.accelerator, resumed.model), weights)
    assert_equal(resumed.drawn[0], run.drawn[1])  # the state of a checkpoint is all there is
    resumed.accelerator.free_memory()
    return run.drawn[:3], after


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_sp_ranks_train_evaluate_and_continue_as_one_process(world, tmp_path, stage):
    outcomes = world(2).run(train, stage, tmp_path, train_alone())
    world(2).close()  # DeepSpeed has replaced the attention of transformers in these processes
    (first, first_after), (second, second_after) = outcomes
    for one, other in zip(first, second, strict=True):
        assert not torch.equal(one, other)  # for other tokens, other numbers: in the model only
    assert torch.equal(first_after, second_after)
