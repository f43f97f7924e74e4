"""What the ranks of DeepSpeed's tests begin with."""

from __future__ import annotations

from typing import Any

import torch

from accel import Accelerator, DeepSpeedPlugin
from accel_state.runtime import reset_runtime


def plugin(stage: int, sections: dict[str, Any] | None = None, **zero: Any) -> DeepSpeedPlugin:
    """Return a plugin with a stage of ZeRO, further settings of it, and other sections of DeepSpeed's config."""
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": stage, **zero}}
    return DeepSpeedPlugin(hf_ds_config=config | (sections or {}))


def begin(with_plugin: DeepSpeedPlugin | None, **arguments: Any) -> Accelerator:
    """Return an Accelerator of a rank that has none."""
    reset_runtime(keep_process_group=True)
    return Accelerator(cpu=True, deepspeed_plugin=with_plugin, **arguments)


def trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def sgd(model: torch.nn.Module, rate: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(trained(model), lr=rate)


def steps(*optimizers: Any) -> None:
    """Step with optimizers and schedulers, and forget the gradients."""
    for one in optimizers:
        one.step()
    for one in optimizers:
        if hasattr(one, "zero_grad"):
            one.zero_grad()


def weights_of(accelerator: Accelerator, model: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in accelerator.get_state_dict(model).items()}


def assert_equal(found: Any, wanted: Any, *, atol: float = 0.0) -> None:
    """Assert that nested values are equal, bit for bit or up to a rounding."""
    torch.testing.assert_close(found, wanted, rtol=atol, atol=atol)


def assert_weights(accelerator: Accelerator, model: Any, alone: torch.nn.Module) -> None:
    """Assert that a model has the weights of one that plain PyTorch has trained."""
    found = weights_of(accelerator, model)
    if accelerator.is_main_process or found:
        assert list(found) == list(alone.state_dict())
        assert_equal(found, dict(alone.state_dict()), atol=1e-6)
