"""What libraries use of Accelerate next to its interface works as they use it; see libraries/private_names.toml."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from accel import Accelerator
from accel.big_modeling import cpu_offload, disk_offload
from accel.hooks import AlignDevicesHook, SequentialHook, add_hook_to_module
from accel.state import AcceleratorState, PartialState

TABLE = tomllib.loads(
    (Path(__file__).parent / "libraries" / "private_names.toml").read_text(encoding="utf-8")
)
LISTED = {name for name, libraries in TABLE.items() if isinstance(libraries, list)}
CPU = torch.device("cpu")
shown: set[str] = set()


def shows(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Note that a test uses these names."""
    shown.update(names)
    return lambda test: test


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


@shows("Accelerator._models", "prepared._is_accelerate_prepared")
def test_models_that_were_prepared_are_known_and_carry_a_mark():
    accelerator = Accelerator(cpu=True)
    assert len(accelerator._models) == 0
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    prepared = accelerator.prepare(model, optimizer, scheduler, DataLoader([1, 2]))
    assert accelerator._models == [prepared[0]]
    assert all(one._is_accelerate_prepared for one in prepared)
    assert not hasattr(nn.Linear(1, 1), "_is_accelerate_prepared")


@shows("AcceleratorState._reset_state", "PartialState._reset_state", "PartialState._shared_state")
def test_a_state_can_be_reset_for_the_next_run():
    assert PartialState._shared_state == {}
    Accelerator(cpu=True, mixed_precision="bf16")
    assert PartialState._shared_state != {}
    AcceleratorState()._reset_state()
    assert Accelerator(cpu=True, mixed_precision="no").mixed_precision == "no"
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._reset_state()
    assert PartialState._shared_state == {}


@shows("GradientState._set_sync_gradients")
def test_an_optimizer_steps_only_if_the_library_allows_it():
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1, bias=False)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = model.weight.item()
    for is_last in (False, True):
        accelerator.gradient_state._set_sync_gradients(is_last)
        accelerator.backward(model(torch.ones(1, 1)).sum())
        optimizer.step()
        assert (model.weight.item() != before) is is_last
        optimizer.zero_grad()
    assert model.weight.item() == pytest.approx(before - 0.1 * 2, abs=1e-6)


@shows(
    "Module._hf_hook",
    "Module._old_forward",
    "_hf_hook.io_same_device",
    "_hf_hook.hooks",
    "_hf_hook.execution_device",
)
def test_hooks_are_found_at_their_module():
    module = nn.Linear(2, 2)
    assert not hasattr(module, "_hf_hook")
    add_hook_to_module(module, AlignDevicesHook(execution_device=CPU))
    module._hf_hook.io_same_device = True
    assert module._hf_hook.execution_device == CPU
    assert module._old_forward.__func__ is nn.Linear.forward
    add_hook_to_module(module, AlignDevicesHook(), append=True)
    assert isinstance(module._hf_hook, SequentialHook)
    assert isinstance(module._hf_hook.hooks[0], AlignDevicesHook)


@shows("Module._hf_hook")
def test_a_hook_can_be_made_again_from_its_attributes():
    """A module that is replaced (quantised, adapted) gets the hook of the old one, by the parameters it was made of."""
    old = AlignDevicesHook(execution_device=CPU, io_same_device=True, skip_keys="cache")
    known = inspect.signature(AlignDevicesHook.__init__).parameters
    new = AlignDevicesHook(**{name: value for name, value in old.__dict__.items() if name in known})
    assert (new.execution_device, new.io_same_device, new.skip_keys) == (CPU, True, "cache")


@shows(
    "_hf_hook.offload",
    "_hf_hook.original_devices",
    "_hf_hook.pre_forward",
    "_hf_hook.post_forward",
    "_hf_hook.weights_map",
)
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_an_offloaded_weight_can_be_changed_between_the_calls_of_its_hook(tmp_path, place):
    model = layers()
    if place == "memory":
        cpu_offload(model, execution_device=CPU)
    else:
        disk_offload(model, tmp_path, execution_device=CPU)
    first = model[0]
    hook = first._hf_hook
    assert hook.offload
    assert hook.original_devices == {"weight": CPU, "bias": CPU}
    assert set(hook.weights_map.dataset) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    if place == "disk":
        assert "0.weight" in hook.weights_map.dataset.index
    hook.pre_forward(first)
    changed = torch.full((2, 2), 3.0)
    first.weight.data = changed
    hook.weights_map = {name: value.to("cpu") for name, value in first.named_parameters()}
    hook.post_forward(first, torch.tensor([]))
    assert first.weight.is_meta
    assert torch.equal(hook.weights_map["weight"], changed)
    assert torch.equal(first(torch.ones(1, 2)), torch.full((1, 2), 6.0) + hook.weights_map["bias"])


def test_all_that_is_listed_is_shown():
    assert shown == LISTED
