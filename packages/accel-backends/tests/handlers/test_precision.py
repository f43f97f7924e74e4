from __future__ import annotations

import inspect

import torch

from accel_backends import GradScalerKwargs


def test_defaults_are_those_of_torch():
    theirs = inspect.signature(torch.amp.GradScaler).parameters
    assert GradScalerKwargs().to_dict() == {
        name: theirs[name].default for name in theirs if name not in ("self", "device")
    }


def test_to_kwargs_gives_what_differs():
    assert GradScalerKwargs(growth_interval=10).to_kwargs() == {"growth_interval": 10}
