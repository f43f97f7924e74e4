from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

from accel_bigmodel import (
    AlignDevicesHook,
    add_hook_to_module,
    attach_align_device_hook,
    attach_align_device_hook_on_blocks,
    attach_execution_device_hook,
    cpu_offload,
    remove_hook_from_module,
    remove_hook_from_submodules,
)
from accel_bigmodel.hooks.base import hooks_of
from accel_state.errors import StateError

pytestmark = pytest.mark.usefixtures("execution_memory")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 5)).eval()


def test_weights_go_to_the_execution_device_and_inputs_follow():
    module = add_hook_to_module(nn.Linear(2, 2), AlignDevicesHook("meta"))
    assert module.weight.is_meta
    assert module(torch.zeros(1, 2)).is_meta


def test_the_output_returns_to_where_the_input_was():
    module = add_hook_to_module(nn.Linear(2, 2), AlignDevicesHook("cpu", io_same_device=True))
    assert module(torch.zeros(1, 2, device="cpu")).device.type == "cpu"
    skipping = AlignDevicesHook("meta", skip_keys="kept")
    _, moved = skipping.pre_forward(nn.Identity(), x=torch.zeros(1), kept=torch.zeros(1))
    assert moved["x"].is_meta
    assert not moved["kept"].is_meta


def test_offloaded_weights_are_there_during_the_forward_only():
    seen = []

    class Watching(nn.Linear):
        def forward(self, x):
            seen.append((type(self.weight), self.weight.device.type, self.weight.requires_grad))
            return super().forward(x)

    module = Watching(2, 2)
    x = torch.randn(1, 2)
    wanted = nn.Linear.forward(module, x)
    add_hook_to_module(module, AlignDevicesHook("cpu", offload=True))
    assert module.weight.is_meta
    assert module.weight.shape == (2, 2)
    with torch.no_grad():
        assert torch.equal(module(x), wanted)
    assert seen == [(nn.Parameter, "cpu", False)]
    assert module.weight.is_meta
    remove_hook_from_module(module)
    assert type(module.weight) is nn.Parameter
    assert torch.equal(module(x), wanted)


def test_buffers_stay_unless_they_are_offloaded_too():
    for offload_buffers in (False, True):
        module = nn.BatchNorm1d(3)
        add_hook_to_module(module, AlignDevicesHook("cpu", offload=True, offload_buffers=offload_buffers))
        assert module.weight.is_meta
        assert module.running_mean.is_meta == offload_buffers


def test_weights_that_are_nowhere_are_named():
    with pytest.raises(StateError, match=r"`weight` cannot be offloaded: it is on the meta device"):
        add_hook_to_module(nn.Linear(2, 2, device="meta"), AlignDevicesHook("cpu", offload=True))
    model = net()
    with pytest.raises(StateError, match=r"`2\.weight`"):
        attach_align_device_hook(
            model, offload=True, weights_map={k: v for k, v in model.state_dict().items() if k[0] != "2"}
        )


def test_every_module_with_weights_gets_a_hook():
    model, x = net(), torch.randn(2, 3)
    with torch.no_grad():
        wanted = model(x)
        attach_align_device_hook(model, torch.device("cpu"), offload=True)
        assert torch.equal(model(x), wanted)
    assert [bool(hooks_of(module)) for module in model.modules()] == [False, True, True, True]
    remove_hook_from_submodules(model)
    assert not any(hooks_of(module) for module in model.modules())
    attach_execution_device_hook(model, "cpu")
    assert [bool(hooks_of(module)) for module in model.modules()] == [False, True, True, True]


def test_a_preloaded_class_is_brought_at_once():
    class Block(nn.Sequential):
        pass

    model = nn.Sequential(Block(nn.Linear(3, 3), nn.Linear(3, 3)), nn.Linear(3, 3))
    attach_align_device_hook(model, torch.device("cpu"), offload=True, preload_module_classes=["Block"])
    assert [len(hook.slots) for module in model.modules() for hook in hooks_of(module)] == [4, 2]
    assert model[0][1].weight.is_meta
    model(torch.zeros(1, 3))


def test_blocks_run_where_the_table_specifies():
    model = net()
    attach_align_device_hook_on_blocks(
        model,
        execution_device={"0": "cpu", "1": "cpu", "2": "cpu"},
        offload={"0": True, "1": False, "2": True},
        weights_map=model.state_dict(),
    )
    assert [parameter.is_meta for parameter in model.parameters()] == [True, True, False, False, True, True]
    assert model(torch.zeros(2, 3)).shape == (2, 5)


def test_a_hook_whose_initialization_is_replaced_by_nothing_offloads(monkeypatch):
    """So compressed-tensors adds it to modules whose weights are on the meta device already."""
    module = nn.Linear(2, 2)
    x, weights = torch.randn(1, 2), {name: value.clone() for name, value in module.state_dict().items()}
    wanted = module(x)
    hook = AlignDevicesHook("cpu", offload=True, weights_map=weights)
    with monkeypatch.context() as patch:
        patch.setattr(AlignDevicesHook, "init_hook", lambda self, module: module)
        add_hook_to_module(module.to("meta"), hook)
    assert torch.equal(module(x), wanted)
    assert torch.equal(module.state_dict()["weight"], weights["weight"])
    hook.offload = False
    remove_hook_from_module(module)
    assert module.weight.is_meta


def test_buffers_that_no_checkpoint_has_stay_in_memory():
    module = nn.Module()
    module.register_buffer("kept", torch.ones(2))
    module.register_buffer("lost", torch.ones(2), persistent=False)
    add_hook_to_module(module, AlignDevicesHook("cpu", offload=True, offload_buffers=True))
    assert module.kept.is_meta
    assert not module.lost.is_meta


@pytest.mark.parametrize(
    "add", [lambda m: add_hook_to_module(m, AlignDevicesHook("cpu", offload=True)), cpu_offload]
)
def test_the_parameters_that_placeholders_replace_are_released(add):
    module = nn.Linear(2, 2)
    replaced = weakref.ref(module.weight)
    add(module)
    gc.collect()
    assert replaced() is None


def test_a_tied_weight_that_moves_stays_tied():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    add_hook_to_module(model, AlignDevicesHook("meta", place_submodules=True))
    assert model[0].weight.is_meta
    assert model[1].weight is model[0].weight


def test_each_of_two_threads_gets_the_output_on_the_device_of_its_input():
    both_inside = threading.Barrier(2)

    class Meeting(nn.Module):
        def forward(self, x):
            both_inside.wait(20)
            return x + 1

    model = add_hook_to_module(Meeting(), AlignDevicesHook(io_same_device=True))
    found = {}

    def call(device):
        found[device] = model(torch.ones(2, device=device)).device.type

    threads = [threading.Thread(target=call, args=(device,)) for device in ("cpu", "meta")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"cpu": "cpu", "meta": "meta"}
