from __future__ import annotations

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from accel_bigmodel import (
    AlignDevicesHook,
    cpu_offload,
    disk_offload,
    dispatch_model,
    has_offloaded_params,
    init_empty_weights,
    load_checkpoint_in_model,
    offload_state_dict,
    remove_hook_from_submodules,
    save_model,
)
from accel_bigmodel.hooks.base import hooks_of
from accel_state.errors import ConfigError, StateError

pytestmark = pytest.mark.usefixtures("execution_memory")


class WithTables(nn.Module):
    """A module with a buffer that state dicts leave out, as rotary embeddings have."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(4, 4)
        self.register_buffer("scale", torch.rand(4))
        self.register_buffer("frequencies", torch.arange(4.0), persistent=False)

    def forward(self, x):
        return self.lin(x) * self.frequencies + self.scale


@pytest.mark.parametrize("offload_buffers", [False, True])
@pytest.mark.parametrize("way", ["given", "folder", "skeleton", "map"])
def test_buffers_that_state_dicts_leave_out_stay_with_the_model(tmp_path, way, offload_buffers):
    model, x = WithTables(), torch.ones(2, 4)
    with torch.no_grad():
        wanted, state = model(x), model.state_dict()
        if way == "given":
            cpu_offload(model, "cpu", offload_buffers=offload_buffers, state_dict=state)
        elif way == "folder":
            disk_offload(model, tmp_path, "cpu", offload_buffers=offload_buffers)
        elif way == "skeleton":
            offload_state_dict(tmp_path, state)
            with init_empty_weights():
                model = WithTables()
            if not offload_buffers:
                model.scale = state["scale"]
            disk_offload(model, tmp_path, "cpu", offload_buffers=offload_buffers)
        else:
            dispatch_model(model, {"": "disk"}, offload_dir=tmp_path, offload_buffers=offload_buffers)
        assert not model.frequencies.is_meta
        assert model.scale.is_meta == offload_buffers
        assert torch.equal(model(x), wanted)
    if way != "given":
        assert sorted(json.loads((tmp_path / "index.json").read_text())) == [
            "lin.bias",
            "lin.weight",
            "scale",
        ]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 5)).eval()


X = torch.randn(2, 3)


def test_one_device_needs_no_hooks_unless_they_are_requested():
    model = dispatch_model(net(), {"": "cpu"})
    assert model.hf_device_map == {"": "cpu"}
    assert not any(hooks_of(module) for module in model.modules())
    forced = dispatch_model(net(), {"": "cpu"}, force_hooks=True)
    assert any(isinstance(hook, AlignDevicesHook) for hook in hooks_of(forced))
    assert torch.equal(forced(X), net()(X))


def test_parts_lie_where_the_map_specifies(tmp_path):
    model = dispatch_model(net(), {"0": "disk", "1": "cpu", "2": "disk"}, offload_dir=tmp_path)
    assert [parameter.is_meta for parameter in model.parameters()] == [True, True, False, False, True, True]
    assert [has_offloaded_params(module) for module in model] == [True, False, True]
    assert sorted(json.loads((tmp_path / "index.json").read_text())) == [
        "0.bias", "0.weight", "2.bias", "2.weight"
    ]  # fmt: skip
    with torch.no_grad():
        assert torch.equal(model(X), net()(X))


def test_another_main_device_keeps_the_cpu_parts_away(tmp_path):
    model = dispatch_model(net(), {"0": "meta", "1": "cpu", "2": "disk"}, offload_dir=tmp_path)
    assert [has_offloaded_params(module) for module in model] == [False, True, True]
    out = model(torch.zeros(2, 3, device="meta"))
    assert out.is_meta
    assert out.shape == (2, 5)


def test_weights_on_disk_need_a_place():
    with pytest.raises(ConfigError, match="`0` on disk, but there is no folder"):
        dispatch_model(net(), {"0": "disk", "1": "cpu", "2": "cpu"})
    with pytest.raises(ConfigError, match=r"does not cover 2\.weight"):
        dispatch_model(net(), {"0": "cpu", "1": "cpu"})


@pytest.mark.parametrize(
    "convert",
    [
        lambda model: model.to(torch.bfloat16),
        lambda model: model.to(dtype=torch.bfloat16, non_blocking=True),
        lambda model: model.bfloat16(),
    ],
)
def test_an_offloaded_model_is_converted_where_it_is(tmp_path, convert):
    model = dispatch_model(WithTables(), {"": "disk"}, offload_dir=tmp_path)
    wanted = convert(WithTables())
    assert convert(model) is model
    assert model.lin.weight.is_meta
    with torch.no_grad():
        x = torch.ones(2, 4, dtype=torch.bfloat16)
        assert torch.equal(model(x), wanted(x))
    for away in (("cpu",), (torch.device("cpu"), torch.float32), (torch.ones(1),)):
        with pytest.raises(StateError, match="can't move a model"):
            model.to(*away)


def test_a_dispatched_model_is_not_moved(tmp_path):
    model = dispatch_model(net(), {"": "disk"}, offload_dir=tmp_path)
    with pytest.raises(StateError, match="can't move a model that has some modules offloaded"):
        model.to("cpu")
    forced = dispatch_model(net(), {"": "cpu"}, force_hooks=True)
    with pytest.warns(UserWarning, match="shouldn't move a model that is dispatched"):
        assert forced.to("cpu") is forced
    copied = copy.deepcopy(forced)
    with pytest.warns(UserWarning, match="shouldn't move"):
        assert copied.to("cpu") is copied


def test_a_dispatched_model_is_not_moved_to_the_device_of_a_vendors_package(tmp_path, monkeypatch):
    for name in ("neuron", "hpu"):  # the package of the vendor adds it
        monkeypatch.setattr(nn.Module, name, lambda self: self.to(torch.bfloat16), raising=False)
    model = dispatch_model(net(), {"": "disk"}, offload_dir=tmp_path)
    for move in (model.neuron, model.hpu, model.cuda):
        with pytest.raises(StateError, match="can't move a model that has some modules offloaded"):
            move()
    assert type(model.cpu) is not type(model.cuda)


def test_a_folder_that_was_written_before_serves_a_skeleton(tmp_path):
    offload_state_dict(tmp_path, net().state_dict())
    with init_empty_weights():
        skeleton = net()
    skeleton[1].load_state_dict(net()[1].state_dict(), assign=True)
    disk_offload(skeleton.eval(), tmp_path, "cpu")
    with torch.no_grad():
        assert torch.equal(skeleton(X), net()(X))


def test_disk_offload_writes_the_weights_of_now_not_those_of_an_earlier_run(tmp_path):
    disk_offload(net(), tmp_path)
    torch.manual_seed(1)
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 5)).eval()
    wanted = other(X)
    with torch.no_grad():
        assert torch.equal(disk_offload(other, tmp_path)(X), wanted)


def test_loading_and_dispatching_in_two_steps(tmp_path):
    save_model(net(), tmp_path / "weights")
    with init_empty_weights():
        skeleton = net()
    device_map = {"0": "disk", "1": "cpu", "2": "cpu"}
    load_checkpoint_in_model(
        skeleton, tmp_path / "weights", device_map=device_map, offload_folder=tmp_path / "o"
    )
    assert [path.name for path in (tmp_path / "o").iterdir()] == [
        "index.json"
    ]  # no second copy of the weights
    dispatch_model(skeleton.eval(), device_map, offload_dir=tmp_path / "o")
    with torch.no_grad():
        assert torch.equal(skeleton(X), net()(X))


def test_an_offloaded_model_is_saved_with_its_values(tmp_path):
    model = dispatch_model(net(), {"": "disk"}, offload_dir=tmp_path / "o")
    save_model(model, tmp_path / "saved")
    with init_empty_weights():
        skeleton = net()
    load_checkpoint_in_model(skeleton, tmp_path / "saved", strict=True)
    assert all(torch.equal(skeleton.state_dict()[name], value) for name, value in net().state_dict().items())
    torch.save(model.state_dict(), tmp_path / "s.pt")
    assert torch.equal(torch.load(tmp_path / "s.pt")["0.weight"], net()[0].weight)


def test_ties_come_back_as_ties(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    disk_offload(model, tmp_path)
    assert model[1].weight is model[0].weight
    remove_hook_from_submodules(model)
    assert model[1].weight is model[0].weight
    assert not model[0].weight.is_meta


class Halves(nn.Module):
    """An encoder-decoder with the names that transformers gives its own."""

    def __init__(self, *, is_encoder_decoder: bool):
        super().__init__()
        self.config = SimpleNamespace(is_encoder_decoder=is_encoder_decoder)
        self.encoder, self.decoder = nn.Sequential(nn.Linear(3, 3)), nn.Linear(3, 3)

    def get_encoder(self):
        return self.encoder

    def forward(self, x):
        return self.decoder(self.encoder(x))


@pytest.mark.parametrize("place", ["cpu", "disk"])
def test_the_encoder_of_an_encoder_decoder_has_a_hook(tmp_path, place):
    torch.manual_seed(0)
    wanted = Halves(is_encoder_decoder=True)
    model = dispatch_model(copy.deepcopy(wanted), {"": place}, offload_dir=tmp_path)
    assert [hook.io_same_device for hook in hooks_of(model.encoder)] == [True]
    with torch.no_grad():
        assert torch.equal(model(X), wanted(X))
    other = dispatch_model(Halves(is_encoder_decoder=False), {"": place}, offload_dir=tmp_path / "other")
    assert not hooks_of(other.encoder)


def test_hooks_know_the_addresses_of_tied_weights_that_are_offloaded():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    model[2].weight = model[1].weight
    dispatch_model(model, {"0": "meta", "1": "cpu", "2": "cpu"})
    for layer in (model[1], model[2]):
        hook = layer._hf_hook
        assert hook.tied_params_map[hook.weights_map["weight"].data_ptr()] == {}
