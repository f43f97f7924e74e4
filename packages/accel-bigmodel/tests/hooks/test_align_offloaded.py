"""Offloaded models next to others: threads, folders, copies, other processes, the compiler."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import threading
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch import nn

from accel_bigmodel import (
    AlignDevicesHook,
    add_hook_to_module,
    attach_align_device_hook,
    cpu_offload,
    disk_offload,
    dispatch_model,
    init_empty_weights,
    load_checkpoint_and_dispatch,
    remove_hook_from_submodules,
)
from accel_bigmodel.offload.placeholders import weight_of
from accel_state.errors import CheckpointError, StateError

pytestmark = pytest.mark.usefixtures("execution_memory")


class Net(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(10, 8)
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.layers(self.embed(tokens))))


TOKENS = torch.arange(10)[None]


def live_weights(model):
    return [p for p in model.parameters() if weight_of(p).is_live or weight_of(p).is_fetched]


@pytest.mark.parametrize("prefetch", [True, False])
def test_forwards_in_several_threads_leave_no_weight_in_memory(tmp_path, prefetch):
    model = disk_offload(Net(), tmp_path, "cpu", prefetch=prefetch)
    with torch.no_grad():
        wanted = Net()(TOKENS)
    failures, barrier = [], threading.Barrier(4)

    def work():
        barrier.wait()
        for _ in range(20):
            with torch.no_grad():
                if not torch.equal(model(TOKENS), wanted):
                    failures.append(threading.get_ident())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert all(parameter.is_meta for parameter in model.parameters())
    assert not any(weight_of(parameter).is_live for parameter in model.parameters())


def test_a_second_model_in_the_same_folder_is_noticed(tmp_path):
    first = disk_offload(Net(seed=0), tmp_path, "cpu")
    disk_offload(Net(seed=1), tmp_path, "cpu")
    with pytest.raises(CheckpointError, match="another model uses the same offload folder"), torch.no_grad():
        first(TOKENS)


def test_a_model_that_has_used_its_weights_keeps_them_when_the_folder_changes(tmp_path):
    first = disk_offload(Net(seed=0), tmp_path, "cpu")
    with torch.no_grad():
        wanted = first(TOKENS)
        disk_offload(Net(seed=1), tmp_path, "cpu")
        assert torch.equal(first(TOKENS), wanted)


def test_parameters_stay_the_same_objects_where_nothing_moves():
    model = Net()
    before = list(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    dispatch_model(model, {"": "cpu"}, force_hooks=True)
    assert all(now is then for now, then in zip(model.parameters(), before, strict=True))
    assert model.head.weight is model.embed.weight
    attach_align_device_hook(linear := nn.Linear(2, 2), torch.device("cpu"))
    add_hook_to_module(linear, AlignDevicesHook("cpu"))
    loss = model(TOKENS).sum()
    loss.backward()
    optimizer.step()
    assert not torch.equal(model.layers[0].weight, Net().layers[0].weight)


@pytest.mark.parametrize(
    "pickled", [pickle.dumps, functools.partial(torch.save, f=io.BytesIO()), ForkingPickler.dumps]
)
def test_pickling_explains_what_to_do_instead(pickled):
    model = cpu_offload(Net(), "cpu")
    with pytest.raises(StateError, match="cannot be pickled.*`save_model`"):
        pickled(model)


def test_a_model_can_be_moved_once_its_hooks_are_gone(tmp_path):
    model = dispatch_model(Net(), {"embed": "cpu", "layers": "disk", "head": "cpu"}, offload_dir=tmp_path)
    with pytest.raises(StateError, match="offloaded to cpu or disk"):
        model.to("cpu")
    remove_hook_from_submodules(model)
    assert model.to(torch.float64).embed.weight.dtype == torch.float64


def test_dispatching_again_follows_the_new_map(tmp_path):
    with torch.no_grad():
        wanted = Net()(TOKENS)
    model = dispatch_model(Net(), {"": "disk"}, offload_dir=tmp_path / "first")
    for number, on_disk in enumerate(["layers", "embed", "layers.0"]):
        places = {"embed": "cpu", "head": "cpu", **{f"layers.{n}": "cpu" for n in range(4)}}
        places.update({name: "disk" for name in places if f"{name}.".startswith(f"{on_disk}.")})
        if on_disk == "embed":
            places["head"] = "disk"
        dispatch_model(model, places, offload_dir=tmp_path / str(number))
        for name, parameter in model.named_parameters():
            assert parameter.is_meta == f"{name}.".startswith(f"{on_disk}."), name
        with torch.no_grad():
            assert torch.equal(model(TOKENS), wanted)


def test_a_skeleton_can_be_dispatched_again(tmp_path):
    from safetensors.torch import save_model

    save_model(Net(), tmp_path / "model.safetensors")
    with init_empty_weights():
        model = Net()
    load_checkpoint_and_dispatch(model, tmp_path / "model.safetensors", {"": "disk"})
    dispatch_model(model, {"embed": "cpu", "layers": "disk", "head": "cpu"})
    assert not model.embed.weight.is_meta
    assert model.head.weight is model.embed.weight
    assert model.layers[0].weight.is_meta
    dispatch_model(model, {"": "cpu"})
    assert not any(parameter.is_meta for parameter in model.parameters())
    with torch.no_grad():
        assert torch.equal(model(TOKENS), Net()(TOKENS))


@pytest.mark.parametrize("offload", [True, False])
def test_compiled_models_give_the_results_of_plain_ones(tmp_path, offload):
    model, wanted = Net(), Net()
    places = {"embed": "cpu", "head": "cpu", "layers": "disk" if offload else "cpu"}
    dispatch_model(model, places, offload_dir=tmp_path, force_hooks=True)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        for tokens in (TOKENS, TOKENS, TOKENS[:, :4]):
            assert torch.equal(compiled(tokens), wanted(tokens))
    assert model.layers[0].weight.is_meta == offload


def test_a_copy_runs_while_the_original_is_gone(tmp_path):
    model = disk_offload(Net(), tmp_path, "cpu")
    copied = copy.deepcopy(model)
    del model
    with torch.no_grad():
        assert torch.equal(copied(TOKENS), Net()(TOKENS))
