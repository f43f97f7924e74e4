from __future__ import annotations

import pytest
import torch
from torch import nn

from accel_backends import (
    Bundle,
    MSAMPRecipeKwargs,
    StrategyContext,
    collect,
    select_precision,
    select_strategy,
)
from accel_state import current_runtime
from accel_state.devices import device_backend
from accel_state.enums import FP8BackendType
from accel_state.errors import ConfigError, NotAvailableError


def strategy(gpu, level="O2"):
    handlers = collect([MSAMPRecipeKwargs(opt_level=level)])
    precision = select_precision("fp8", device_backend=gpu, handlers=handlers)
    runtime = current_runtime()
    chosen = select_strategy(topology=runtime.topology)
    chosen.setup(StrategyContext(runtime, precision, handlers=handlers))
    return chosen


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_model_and_optimizer_are_converted_together_at_the_level(msamp, gpu, level):
    model = nn.Linear(4, 4)
    given = torch.optim.AdamW(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(given, step_size=1, gamma=0.1)
    chosen = strategy(gpu, level)
    ready = chosen.prepare(Bundle(models=[model], optimizers=[given], schedulers=[scheduler]))
    assert [(called, level_asked) for called, _, level_asked in msamp] == [(model, level)]
    optimizer = ready.optimizers[0]
    assert optimizer.optimizer is not given
    assert scheduler.optimizer is optimizer.optimizer
    assert chosen.context.precision.fp8_backend == FP8BackendType.MSAMP


def test_one_model_and_one_optimizer_are_needed(msamp, gpu):
    chosen = strategy(gpu)
    with pytest.raises(ConfigError, match="this call has 1 models and 0 optimizers. Prepare one of each"):
        chosen.prepare(Bundle(models=[nn.Linear(4, 4)]))
    with pytest.raises(ConfigError, match="converts a model together with its optimizer"):
        chosen.prepare_model(nn.Linear(4, 4))


def test_what_cannot_be_had_is_refused(msamp, gpu):
    handlers = collect([MSAMPRecipeKwargs()])
    with pytest.raises(ConfigError, match="MS-AMP computes on NVIDIA GPUs, not on this `cpu` device"):
        select_precision("fp8", device_backend=device_backend("cpu"), handlers=handlers)


def test_a_missing_package_is_an_error(gpu):
    with pytest.raises(
        NotAvailableError, match="`fp8_backend=MSAMP` cannot be had: `ms-amp` is not installed"
    ):
        select_precision("fp8", device_backend=gpu, handlers=collect([MSAMPRecipeKwargs()]))
