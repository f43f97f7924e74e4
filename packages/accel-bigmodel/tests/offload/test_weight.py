"""Whatever writes to an offloaded weight: the write is kept, and changes nothing that belongs to someone else."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from accel_bigmodel import (
    align_module_device,
    cpu_offload,
    disk_offload,
    init_empty_weights,
    load_checkpoint_and_dispatch,
    remove_hook_from_submodules,
)

SIZE = 6
X = torch.arange(2.0 * SIZE).reshape(2, SIZE)


def resident() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SIZE, SIZE), nn.BatchNorm1d(SIZE)).eval()


def in_memory(folder):
    return cpu_offload(resident(), "cpu", offload_buffers=True)


def given_by_user(folder):
    with init_empty_weights(include_buffers=True):
        model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.BatchNorm1d(SIZE)).eval()
    return cpu_offload(model, "cpu", offload_buffers=True, state_dict=USERS)


def in_folder(folder):
    return disk_offload(resident(), folder / "offload", "cpu", offload_buffers=True)


def in_checkpoint(folder, dtype=None):
    torch.save(resident().state_dict(), folder / "model.bin")
    from safetensors.torch import save_file

    save_file(resident().state_dict(), folder / "model.safetensors")
    with init_empty_weights(include_buffers=True):
        model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.BatchNorm1d(SIZE)).eval()
    return load_checkpoint_and_dispatch(
        model, folder / "model.safetensors", {"": "disk"}, offload_buffers=True, dtype=dtype
    )


def converted(folder):
    return in_checkpoint(folder, torch.float64)


USERS = resident().state_dict()
WAYS = [in_memory, given_by_user, in_folder, in_checkpoint, converted]


def by_view_kept_for_later(p):
    row = p[0]
    p.detach().abs()
    row.fill_(7)


def by_out(p):
    torch.add(torch.ones(SIZE, SIZE, dtype=p.dtype), 1, out=p.data)


WRITES = {
    "in place": lambda p: p.fill_(3),
    "arithmetic": lambda p: p.mul_(2).add_(1),
    "operator": lambda p: p.__imul__(2),
    "data": lambda p: p.data.fill_(3),
    "data.copy_": lambda p: p.data.copy_(torch.full((SIZE, SIZE), 5.0)),
    "copy_": lambda p: p.copy_(torch.full((SIZE, SIZE), 5.0)),
    "row": lambda p: p[0].fill_(3),
    "item": lambda p: p.__setitem__(0, 4.0),
    "detach": lambda p: p.detach().zero_(),
    "view": lambda p: p.view(-1)[3:5].fill_(9),
    "transposed": lambda p: p.T[1].fill_(2),
    "chunk": lambda p: p.chunk(2)[1].zero_(),
    "numpy": lambda p: p.detach().numpy().fill(8),
    "init": nn.init.ones_,
    "view kept for later": by_view_kept_for_later,
    "out": by_out,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("write", WRITES)
def test_a_write_to_a_weight_is_kept_and_seen_nowhere_else(tmp_path, way, write):
    model, wanted = way(tmp_path), resident().to(torch.float64 if way is converted else torch.float32)
    copied = copy.deepcopy(model)
    before = {name: value.clone() for name, value in wanted.state_dict().items()}
    users = {name: value.clone() for name, value in USERS.items()}
    with torch.no_grad():
        WRITES[write](wanted[0].weight)
        WRITES[write](model[0].weight)
        x = X.to(wanted[0].weight.dtype)
        for _ in range(2):
            assert torch.equal(model.state_dict()["0.weight"], wanted.state_dict()["0.weight"])
            assert torch.equal(model(x), wanted(x))
    assert model[0].weight.is_meta
    for name, value in copied.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(torch.equal(USERS[name], value) for name, value in users.items())
    remove_hook_from_submodules(model)
    assert torch.equal(model.state_dict()["0.weight"], wanted.state_dict()["0.weight"])


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_and_its_original_have_weights_of_their_own(tmp_path, way):
    model = way(tmp_path)
    copied = copy.deepcopy(model)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    other = {name: torch.full_like(value, 3) for name, value in before.items()}
    copied.load_state_dict(other)
    with torch.no_grad():
        copied.train()(X.to(before["0.weight"].dtype))  # moves the running statistics
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not torch.equal(copied.state_dict()["1.running_mean"], other["1.running_mean"])
    again = copy.deepcopy(copied)
    model.load_state_dict(other)
    again[0].weight.data.zero_()
    assert torch.equal(copied.state_dict()["0.weight"], other["0.weight"])


@pytest.mark.parametrize("way", WAYS)
def test_statistics_that_the_forward_moves_do_not_reach_the_users_state_dict(tmp_path, way):
    model, users = way(tmp_path), {name: value.clone() for name, value in USERS.items()}
    wanted = resident().to(model[0].weight.dtype)
    x = X.to(wanted[0].weight.dtype)
    with torch.no_grad():
        for each in (model, wanted):
            each.train()(x)
    assert torch.equal(model.state_dict()["1.running_mean"], wanted.state_dict()["1.running_mean"])
    assert all(torch.equal(USERS[name], value) for name, value in users.items())


@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_while_a_module_is_aligned_is_kept(tmp_path, way):
    model = way(tmp_path)
    with align_module_device(model[0], "cpu"), torch.no_grad():
        model[0].weight.fill_(2)
        model[0].bias.data.fill_(1)
    assert (model.state_dict()["0.weight"] == 2).all()
    assert (model.state_dict()["0.bias"] == 1).all()


@pytest.mark.parametrize("way", WAYS)
def test_a_model_can_be_converted_to_another_dtype(tmp_path, way):
    model, wanted = way(tmp_path).half(), resident().half()
    assert all(p.dtype == torch.float16 for p in model.parameters())
    assert torch.equal(model.state_dict()["0.weight"], wanted.state_dict()["0.weight"])
    with torch.no_grad():
        assert model(X.half()).dtype == torch.float16


def test_models_made_under_inference_mode_can_be_offloaded():
    with torch.inference_mode():
        model = resident()
        wanted = model(X)
    cpu_offload(model, "cpu", offload_buffers=True)
    with torch.no_grad():
        assert torch.equal(model(X), wanted)
    model[0].weight.data.zero_()
    assert not model.state_dict()["0.weight"].any()
