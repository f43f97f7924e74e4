from types import SimpleNamespace

import pytest
import torch
from torch import nn

from accel import (
    Accelerator,
    AutocastKwargs,
    DataLoaderConfiguration,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    ParallelismConfig,
    PartialState,
    ProfileKwargs,
)
from accel_state import AcceleratorState, GradientState
from accel_state.errors import ConfigError, StateError

pytestmark = pytest.mark.usefixtures("fresh_state")


def test_what_was_given_can_be_looked_up():
    given = [AutocastKwargs(), GradScalerKwargs(), InitProcessGroupKwargs(), ProfileKwargs()]
    config = DataLoaderConfiguration(split_batches=True)
    accelerator = Accelerator(
        cpu=True,
        mixed_precision="fp16",
        kwargs_handlers=given,
        dataloader_config=config,
        step_scheduler_with_optimizer=False,
    )
    found = (
        accelerator.autocast_handler,
        accelerator.scaler_handler,
        accelerator.init_handler,
        accelerator.profile_handler,
    )
    assert all(one is other for one, other in zip(found, given, strict=True))
    assert accelerator.ddp_handler is None
    assert accelerator.dataloader_config == config
    assert not accelerator.step_scheduler_with_optimizer
    assert accelerator.rng_types == ["generator"]
    assert accelerator.native_amp
    model = nn.Linear(1, 1)
    _, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert accelerator.scaler is optimizer.scaler


def test_full_precision_scales_and_casts_nothing():
    accelerator = Accelerator(cpu=True)
    assert accelerator.scaler is None
    accelerator.native_amp = False
    with pytest.raises(ConfigError, match="`native_amp` follows `mixed_precision`, which is no"):
        accelerator.native_amp = True


@pytest.mark.parametrize("built", [None, PartialState, Accelerator])
def test_a_call_that_failed_leaves_the_state_as_it_was(built):
    before = built and built(cpu=True)
    with pytest.raises(ConfigError, match="wandbb"):
        Accelerator(cpu=True, log_with="wandbb", mixed_precision="bf16" if built is not Accelerator else None)
    assert PartialState.is_initialized() is (built is not None)
    assert AcceleratorState.is_initialized() is GradientState.is_initialized() is (built is Accelerator)
    assert Accelerator(cpu=True, mixed_precision="no").mixed_precision == "no"
    del before


@pytest.mark.parametrize(
    "wrong",
    [
        {"project_dir": None, "log_with": "tensorboard"},
        {"strategy_plugin": SimpleNamespace(strategy="unknown")},
        {"parallelism_config": ParallelismConfig(tp_size=2)},
    ],
    ids=lambda wrong: next(reversed(wrong)),
)
def test_a_call_that_failed_changes_no_earlier_accumulation(wrong):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    with pytest.raises((ConfigError, StateError)):
        Accelerator(cpu=True, gradient_accumulation_steps=2, **wrong)
    assert accelerator.gradient_accumulation_steps == 4


def built_after_a_failure():
    with pytest.raises(ConfigError, match="wandbb"):
        Accelerator(cpu=True, log_with="wandbb", mixed_precision="bf16")
    accelerator = Accelerator(cpu=True, mixed_precision="no")
    return accelerator.mixed_precision, accelerator.gather(torch.tensor([accelerator.process_index])).tolist()


def test_ranks_whose_call_failed_call_again(world):
    assert world(2).run(built_after_a_failure) == [("no", [0, 1])] * 2


def wrapped_anew():
    accelerator = Accelerator(cpu=True)
    first = accelerator.prepare(nn.Linear(1, 1))
    accelerator.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=True)
    second = accelerator.prepare(nn.Linear(1, 1))
    accelerator.ddp_handler = None
    third = accelerator.prepare(nn.Linear(1, 1))
    return [model.find_unused_parameters for model in (first, second, third)]


def test_how_models_are_wrapped_may_be_set_before_they_are_prepared(world):
    assert world(2).run(wrapped_anew) == [[False, True, False]] * 2
