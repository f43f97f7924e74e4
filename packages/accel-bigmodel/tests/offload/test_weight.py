"""Whatever writes to an offloaded weight: the write is kept, and changes nothing that belongs to someone else."""

from __future__ import annotations

import copy
import gc
import pickle

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from accel_bigmodel import (
    PrefixedDataset,
    add_hook_to_module,
    align_module_device,
    cpu_offload,
    disk_offload,
    dispatch_model,
    init_empty_weights,
    load_checkpoint_and_dispatch,
    named_module_tensors,
    remove_hook_from_module,
    remove_hook_from_submodules,
)
from accel_bigmodel.offload.placeholders import weight_of
from accel_state.errors import ConfigError, StateError

pytestmark = pytest.mark.usefixtures("execution_memory")

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
def test_a_write_to_an_aligned_weight_is_kept_and_seen_nowhere_else(tmp_path, way, write):
    model, wanted = way(tmp_path), resident().to(torch.float64 if way is converted else torch.float32)
    copied = copy.deepcopy(model)
    before = {name: value.clone() for name, value in wanted.state_dict().items()}
    users = {name: value.clone() for name, value in USERS.items()}
    with torch.no_grad():
        WRITES[write](wanted[0].weight)
        with align_module_device(model[0]):
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
    if way in (in_memory, in_folder):
        assert torch.equal(model.state_dict()["0.weight"], wanted.state_dict()["0.weight"])
    else:  # the model had no values of its own
        assert all(type(p) is nn.Parameter and p.is_meta for p in model.parameters())


@pytest.mark.parametrize(
    "use",
    [
        *WRITES.values(),
        torch.sum,
        lambda p: p + 1,
        lambda p: p.to("cuda"),
        lambda p: X @ p.T,
        lambda p: p.T.tolist(),
    ],
)
def test_a_weight_is_not_used_outside_of_a_forward_pass(tmp_path, use):
    model, users = given_by_user(tmp_path), {name: value.clone() for name, value in USERS.items()}
    aligned = r"`0\.weight` is offloaded, .*Read and write it inside `with align_module_device\(module\):`"
    with pytest.raises(StateError, match=aligned), torch.no_grad():
        use(model[0].weight)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in users.items())
    assert all(torch.equal(USERS[name], value) for name, value in users.items())


@pytest.mark.parametrize(
    "view",
    [
        lambda p: p.T, lambda p: p.detach(), lambda p: p.view(-1), lambda p: p.detach().T[1:, 2].reshape(-1, 1),
        lambda p: p.unsqueeze(0).transpose(1, 2), torch.t, lambda p: torch.reshape(p, (-1, 2)),
    ],
)  # fmt: skip
def test_a_view_of_a_weight_has_a_shape_and_values_within_a_forward_only(tmp_path, view):
    class Viewing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(SIZE, SIZE)

        def forward(self, x):
            return x * self.taken[0]

    torch.manual_seed(0)
    model = Viewing()
    wanted = view(model.inner.weight.detach().clone())
    taken = view(cpu_offload(model, "cpu").inner.weight)
    assert (taken.shape, taken.dtype, taken.stride()) == (wanted.shape, wanted.dtype, wanted.stride())
    assert "inner.weight" in repr(taken)
    for use in (torch.sum, lambda t: t + 1, lambda t: t.tolist(), copy.deepcopy):
        with pytest.raises(StateError, match=r"`inner\.weight` is offloaded"), torch.no_grad():
            use(taken)
    with torch.no_grad():
        model.taken = [taken]
        assert torch.equal(model(torch.ones(1)), wanted)


def test_metadata_of_a_weight_is_there_without_its_values(tmp_path):
    weight = in_memory(tmp_path)[0].weight
    assert (weight.data.shape, weight.data.dtype, weight.data.is_meta) == ((SIZE, SIZE), torch.float32, True)
    assert weight.half().dtype == torch.float16
    assert weight.to("cpu") is weight  # where it is used
    with pytest.raises(StateError, match="is offloaded"):
        torch.nn.functional.linear(X, weight.double().float())


@pytest.mark.parametrize("way", [in_memory, given_by_user, in_folder])
def test_a_model_stays_offloaded_when_it_is_moved_to_the_device_on_which_it_runs(tmp_path, way):
    model = way(tmp_path)
    wanted, maps = model.state_dict(), [module._hf_hook.weights_map for module in model]
    assert model.to("cpu").cpu() is model
    assert all(parameter.is_meta for parameter in model.parameters())
    assert all(module._hf_hook.weights_map is before for module, before in zip(model, maps, strict=True))
    assert all(torch.equal(value, wanted[name]) for name, value in model.state_dict().items())
    with pytest.raises(StateError, match="is offloaded"):
        model.to("cuda")


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_and_its_original_have_separate_weights(tmp_path, way):
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
    with align_module_device(again[0]), torch.no_grad():
        again[0].weight.zero_()
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


def stored_by_hook(model):
    return model[0]._hf_hook.weights_map["weight"]


@pytest.mark.parametrize("way", [in_memory, given_by_user])
def test_a_stored_weight_that_is_changed_in_place_is_seen_by_the_next_forward(tmp_path, way):
    model, wanted, before = way(tmp_path), resident(), USERS["0.weight"].clone()
    try:
        with torch.no_grad():
            for change in (lambda t: t.mul_(2), lambda t: t[0].fill_(3), lambda t: t.add_(1)):
                for _ in range(3):
                    assert torch.equal(model(X), wanted(X))
                change(stored_by_hook(model))
                change(wanted[0].weight)
            assert torch.equal(model(X), wanted(X))
        assert torch.equal(model.state_dict()["0.weight"], wanted[0].weight)
    finally:
        USERS["0.weight"].copy_(before)


def merge_as_peft_does(module, delta):
    """Change a weight while the hook has loaded it, in a way that leaves no trace, and store it through the hook."""
    hook = module._hf_hook
    hook.pre_forward(module)
    module.weight.data += delta
    hook.weights_map = {name: tensor.to("cpu") for name, tensor in named_module_tensors(module)}
    hook.post_forward(module, torch.tensor([]))


@pytest.mark.parametrize("way", WAYS)
def test_values_assigned_to_the_map_of_a_hook_are_the_weights(tmp_path, way):
    model, wanted = way(tmp_path), resident().to(torch.float64 if way is converted else torch.float32)
    hook = model[0]._hf_hook
    assert isinstance(hook.weights_map, PrefixedDataset)
    assert torch.equal(hook.weights_map["weight"].to(wanted[0].weight.dtype), wanted[0].weight)
    for delta in (1.0, -3.0):
        merge_as_peft_does(model[0], delta)
        with torch.no_grad():
            wanted[0].weight += delta
            assert torch.equal(model(X.to(wanted[0].weight.dtype)), wanted(X.to(wanted[0].weight.dtype)))
        assert torch.equal(hook.weights_map["weight"], wanted[0].weight)
        assert not hasattr(hook.weights_map, "dataset")  # what is on disk is out of date
        assert torch.equal(model.state_dict()["0.weight"], wanted[0].weight)
    assert model[0].weight.is_meta


def test_the_map_of_a_hook_shows_what_was_written_elsewhere(tmp_path):
    model = in_folder(tmp_path)
    model[0].weight.data = torch.full((SIZE, SIZE), 4.0)
    assert (model[0]._hf_hook.weights_map["weight"] == 4).all()


def test_a_map_without_all_weights_is_refused_and_changes_nothing(tmp_path):
    model = in_memory(tmp_path)
    with pytest.raises(StateError, match=r"`weights_map` lacks `bias`\. Include the values of all"):
        model[0]._hf_hook.weights_map = {"weight": torch.zeros(SIZE, SIZE)}
    assert torch.equal(model.state_dict()["0.weight"], resident()[0].weight)


@pytest.mark.parametrize("way", WAYS)
def test_tensors_with_the_class_and_attributes_of_an_offloaded_weight_have_their_own_values(tmp_path, way):
    model = way(tmp_path)
    weight = model[0].weight
    named = torch.ones(SIZE, SIZE)
    named.__class__, named.__dict__ = weight.__class__, weight.__dict__.copy()
    assert "7." not in repr(named)
    with torch.no_grad():
        assert torch.equal(named + 1, torch.full((SIZE, SIZE), 2.0))
    assert type(named) is nn.Parameter
    for use in (copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t)), lambda t: type(t)(t.data), repr):
        other = torch.ones(SIZE, SIZE)
        other.__class__, other.__dict__ = weight.__class__, weight.__dict__.copy()
        assert repr(use(other)).count("1.") == SIZE * SIZE
    # The value of the weight, while it is loaded, may get them, too.
    model[0]._hf_hook.pre_forward(model[0])
    value = model[0].weight
    value.__class__, value.__dict__ = weight.__class__, weight.__dict__.copy()
    with torch.no_grad():
        found = value.double().clone()
    model[0]._hf_hook.post_forward(model[0], None)
    assert torch.equal(found, resident()[0].weight.double())


@pytest.mark.parametrize("way", WAYS)
def test_a_hook_that_no_longer_offloads_leaves_the_same_tensors_without_values(tmp_path, way):
    model = way(tmp_path)
    weight, statistics = model[0].weight, model[1].running_mean
    for module in model:
        module._hf_hook.offload = False
        remove_hook_from_module(module)
    assert model[0].weight is weight
    assert model[1].running_mean is statistics
    assert (type(weight), type(statistics)) == (nn.Parameter, torch.Tensor)
    assert weight.is_meta
    assert statistics.is_meta
    assert (weight + 1).is_meta
    filled = torch.ones(SIZE, SIZE)
    filled.__class__, filled.__dict__ = weight.__class__, weight.__dict__.copy()
    assert torch.nn.functional.linear(torch.ones(2, SIZE), filled).sum() == 2 * SIZE * SIZE


def test_removing_hooks_copies_only_what_belongs_to_the_caller_or_a_file(tmp_path):
    model = resident()
    addresses = [tensor.data_ptr() for tensor in model.state_dict().values()]
    remove_hook_from_submodules(cpu_offload(model, "cpu", offload_buffers=True))
    assert [tensor.data_ptr() for tensor in model.state_dict().values()] == addresses
    users = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    remove_hook_from_submodules(cpu_offload(model, "cpu", offload_buffers=True, state_dict=users))
    assert not {t.data_ptr() for t in users.values()} & {t.data_ptr() for t in model.state_dict().values()}
    disk_offload(model, tmp_path, "cpu", offload_buffers=True)
    mapped = {tensor.data_ptr() for tensor in model.state_dict().values()}
    remove_hook_from_submodules(model)
    assert not mapped & {tensor.data_ptr() for tensor in model.state_dict().values()}


@pytest.mark.parametrize("way", [in_memory, in_folder])
def test_a_weight_that_the_caller_keeps_does_not_keep_the_others(tmp_path, way):
    model = way(tmp_path)
    kept = model[0].weight
    others = StorageWeakRef(model.state_dict()["1.weight"].untyped_storage())
    remove_hook_from_submodules(model)
    del model
    gc.collect()
    assert others.expired()
    assert torch.equal(weight_of(kept).stored(), resident()[0].weight)


def test_a_hook_handed_to_another_module_offloads_its_weights():
    model = cpu_offload(nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4)), "cpu")
    larger = nn.Embedding(12, 4)
    wanted = larger.weight.detach().clone()
    add_hook_to_module(larger, model[0]._hf_hook)  # as transformers does when it resizes embeddings
    model[0] = larger
    assert larger.weight.is_meta
    with torch.no_grad():
        assert torch.equal(larger(torch.tensor([0, 11])), wanted[[0, 11]])
    assert torch.equal(model.state_dict()["0.weight"], wanted)


def test_given_weights_of_another_shape_are_refused():
    model = nn.Sequential(nn.Embedding(12, 4))
    cpu_offload(model, "cpu", state_dict={"0.weight": torch.zeros(10, 4)})
    wrong = r"`0\.weight` has the shape \(12, 4\), but its stored weights have \(10, 4\)\. Pass the weights of this"
    with pytest.raises(ConfigError, match=wrong), torch.no_grad():
        model(torch.tensor([0]))


def test_a_model_without_its_own_values_can_be_offloaded_again(tmp_path):
    model = in_checkpoint(tmp_path)
    with torch.no_grad():
        wanted = model(X)
        assert torch.equal(cpu_offload(model, "cpu", offload_buffers=True)(X), wanted)
        dispatch_model(model, {"": "cpu"}, force_hooks=True)
        assert torch.equal(model(X), wanted)


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
    with align_module_device(model[0]), torch.no_grad():
        model[0].weight.zero_()
    assert not model.state_dict()["0.weight"].any()


def test_an_error_in_a_state_dict_changes_no_later_use(tmp_path):
    class Failing(nn.Linear):
        def _save_to_state_dict(self, *args):
            raise ValueError("not this one")

    users = {
        "0.weight": torch.ones(2, 2),
        "0.bias": torch.ones(2),
        "1.weight": torch.ones(2, 2),
        "1.bias": torch.ones(2),
    }
    model = cpu_offload(nn.Sequential(nn.Linear(2, 2), Failing(2, 2)), "cpu", state_dict=users)
    with pytest.raises(ValueError, match="not this one"):
        model.state_dict()
    with pytest.raises(StateError, match="is offloaded"):
        model[0].weight.detach().zero_()
    assert (users["0.weight"] == 1).all()


@pytest.mark.parametrize("way", WAYS)
def test_norms_and_averages_of_offloaded_weights_are_refused(tmp_path, way):
    model = way(tmp_path)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    for use in (
        lambda: torch.nn.utils.get_total_norm(model.parameters()),
        lambda: averaged.update_parameters(model),
    ):
        with pytest.raises(StateError, match="inside `with align_module_device"):
            use()
    with align_module_device(model[0]):
        norm = torch.nn.utils.get_total_norm(model[0].parameters())
    wanted = resident()[0].to(torch.float64 if way is converted else torch.float32)
    assert torch.equal(norm, torch.nn.utils.get_total_norm(wanted.parameters()))
