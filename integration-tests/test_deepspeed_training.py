"""Two ranks with DeepSpeed must train as one process would that accumulates their micro-batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepspeed_runs import assert_equal, assert_weights, begin, steps, trained
from torch.utils.data import DataLoader

from accel import DeepSpeedPlugin
from tools.harness.models import make_batches, make_model

pytestmark = pytest.mark.engine("deepspeed")

HPZ: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 0},
}
ENGINES: dict[str, dict[str, Any]] = {
    "zero0": {"zero_stage": 0},
    "zero1": {"zero_stage": 1},
    "zero2": {"zero_stage": 2},
    "zero3": {"zero_stage": 3},
    "offload2": {"zero_stage": 2, "offload_optimizer_device": "cpu"},
    "offload3": {"zero_stage": 3, "offload_optimizer_device": "cpu", "offload_param_device": "cpu"},
    "hpz3": {"hf_ds_config": HPZ},
}
ACCUMULATE, CLIP, NUM_BATCHES, NUM_EPOCHS = 3, 0.1, 5, 2


def train(engine: str, kind: str) -> None:
    """Train with DeepSpeed, and with plain PyTorch on the micro-batches of both ranks."""
    accelerator = begin(DeepSpeedPlugin(**ENGINES[engine]), gradient_accumulation_steps=ACCUMULATE)
    alone, model = make_model(kind), make_model(kind)
    alone_optimizer, optimizer = (torch.optim.AdamW(trained(one), lr=0.01) for one in (alone, model))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    rows = torch.cat(make_batches(NUM_BATCHES * 2))
    model, optimizer, scheduler, loader = accelerator.prepare(
        model, optimizer, scheduler, DataLoader(rows, batch_size=4)
    )
    num_steps = 0
    for _ in range(NUM_EPOCHS):
        for batch, *pair in zip(loader, rows.split(4)[::2], rows.split(4)[1::2], strict=True):
            losses = [alone(rows).square().mean() for rows in pair]
            (sum(losses) / (2 * ACCUMULATE)).backward()
            with accelerator.accumulate(model):
                loss = model(batch).square().mean()
                accelerator.backward(loss)
                norm = accelerator.clip_grad_norm_(model.parameters(), CLIP)
                assert not accelerator.sync_gradients or model.get_global_grad_norm() == norm
                steps(optimizer, scheduler)
            assert_equal(loss, losses[accelerator.process_index], atol=1e-6)
            if accelerator.sync_gradients:
                expected = torch.nn.utils.clip_grad_norm_(alone.parameters(), CLIP)
                assert float(norm) == pytest.approx(float(expected), rel=1e-5)
                steps(alone_optimizer)
                num_steps += 1
                rate = 0.01 / (1 + 2 * num_steps)  # two steps of the schedule, since two ranks read batches
                alone_optimizer.param_groups[0]["lr"] = rate
                assert scheduler.get_last_lr()[0] == pytest.approx(rate)
    assert num_steps == NUM_EPOCHS * 2
    assert_weights(accelerator, model, alone)


@pytest.mark.parametrize("kind", ["odd", "tied", "adapted"])
@pytest.mark.parametrize("engine", ENGINES)
def test_two_ranks_train_as_one_process(world, engine, kind):
    world(2).run(train, engine, kind)
