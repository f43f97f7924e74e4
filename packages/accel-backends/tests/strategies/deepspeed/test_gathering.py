from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from accel_backends import SchedulerSettings, StrategyContext, select_precision
from accel_backends.strategies.deepspeed.dummies import DummyOptim, DummyScheduler
from accel_backends.strategies.deepspeed.gathering import gather_facts
from accel_backends.strategies.deepspeed.pairing import Part
from accel_state import GradientAccumulationPlugin, GradientState, PartialState
from accel_state.runtime import current_runtime


@pytest.fixture
def context(fresh_state):
    PartialState(cpu=True)
    runtime = current_runtime()
    return StrategyContext(runtime, select_precision("bf16", device_backend=runtime.device_backend))


def loader(batch_size):
    return DataLoader(torch.zeros(12, 1), batch_size=batch_size)


def test_a_trained_model_specifies_sizes_rates_and_lengths(context):
    GradientState(GradientAccumulationPlugin(num_steps=3))
    model = nn.Linear(1, 1)
    model.config = SimpleNamespace(text_config=SimpleNamespace(hidden_size=64))
    optimizer = DummyOptim(model.parameters(), lr=0.2, weight_decay=0.1, betas=(0.8, 0.9))
    part = Part(model, optimizer, DummyScheduler(optimizer, total_num_steps=10, warmup_num_steps=2))
    facts = gather_facts(part, loaders=[loader(4), loader(6)], context=context)
    assert facts.micro_batch_sizes.value == (4, 6)
    assert (facts.gradient_accumulation_steps.value, facts.gradient_accumulation_steps.is_default) == (
        3,
        False,
    )
    assert facts.mixed_precision.value == "bf16"
    assert facts.hidden_sizes.value == (64,)
    said = ("learning_rate", "weight_decay", "betas", "warmup_num_steps", "total_num_steps")
    assert [getattr(facts, name).value for name in said] == [0.2, 0.1, (0.8, 0.9), 2, 10]
    assert facts.eps is None


def test_a_model_that_is_not_trained_requests_nothing(context):
    GradientState(GradientAccumulationPlugin(num_steps=3))
    facts = gather_facts(Part(nn.Linear(1, 1)), loaders=[], context=context)
    assert facts.micro_batch_sizes.value == (1,)
    assert facts.gradient_accumulation_steps.value == 1
    assert facts.micro_batch_sizes.is_default
    assert facts.gradient_accumulation_steps.is_default
    assert facts.hidden_sizes is None


def test_the_batch_size_of_a_loader_may_be_that_of_its_batch_sampler(context):
    split = StrategyContext(
        context.runtime, context.precision, scheduling=SchedulerSettings(split_batches=True)
    )
    sampler = SimpleNamespace(batch_size=8)
    facts = gather_facts(
        Part(nn.Linear(1, 1)), loaders=[SimpleNamespace(batch_sampler=sampler), object()], context=split
    )
    assert facts.micro_batch_sizes.value == (8,)
