"""Every dtype of a model, of a file and requested, on every way into a model: what plain PyTorch gives."""

from __future__ import annotations

import itertools
import json

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from accel_bigmodel import (
    dispatch_model,
    get_state_dict_offloaded_model,
    load_checkpoint_and_dispatch,
    load_checkpoint_in_model,
)
from accel_checkpoint.files import FileEntry, digest_of
from accel_checkpoint.manifest import Manifest, write_manifest
from accel_state.errors import CheckpointError, ConfigError

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
DTYPES = (*FLOATS, torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool)
PAIRS = {
    f"{str(in_model)[6:]}_from_{str(in_file)[6:]}": (in_model, in_file)
    for in_model, in_file in itertools.product(DTYPES, DTYPES)
}


class EveryPair(nn.Module):
    """One parameter for each pair of a dtype in the model and one in the file; the last one is tied."""

    def __init__(self, device: str) -> None:
        super().__init__()
        for name, (in_model, _) in PAIRS.items():
            parameter = torch.ones(3, 5, device=device).to(in_model)
            self.register_parameter(name, nn.Parameter(parameter, requires_grad=False))
        self.register_parameter("tied", self.float32_from_bfloat16)


def stored() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(3, 5, generator=generator) * 100
    return {name: values.to(in_file, copy=True) for name, (_, in_file) in PAIRS.items()}


def write(state, folder, kind: str, num_shards: int):
    """Write a checkpoint with the tools of others: `safetensors.torch.save_file` and `torch.save`."""
    whole, suffix, save = {
        "safetensors": ("model", ".safetensors", lambda part, path: safetensors.torch.save_file(part, path)),
        "torch": ("pytorch_model", ".bin", lambda part, path: torch.save(part, path)),
    }[kind]
    if num_shards == 1:
        save(state, folder / f"{whole}{suffix}")
        return
    files = [f"{whole}-{number + 1:05}-of-{num_shards:05}{suffix}" for number in range(num_shards)]
    names = {name: files[number % num_shards] for number, name in enumerate(state)}
    for file in files:
        save({name: tensor for name, tensor in state.items() if names[name] == file}, folder / file)
    (folder / f"{whole}{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))


def wanted_dtype(in_model: torch.dtype, asked: torch.dtype | None) -> torch.dtype:
    """What `model.to(asked).load_state_dict(...)` leaves: only floating-point weights are converted."""
    return asked if asked is not None and in_model.is_floating_point else in_model


@pytest.mark.parametrize("asked", [None, *FLOATS], ids=str)
@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize(
    ("way", "kind"),
    [
        *itertools.product(["resident", "meta", "map to cpu", "disk"], ["safetensors", "torch"]),
        ("disk without folder", "safetensors"),  # files of `torch.save` cannot be read tensor by tensor
    ],
)
@pytest.mark.parametrize("mmap", [False, True], ids=["read", "mapped"])
def test_values_and_dtypes_are_those_of_plain_pytorch(tmp_path, asked, num_shards, kind, way, mmap):
    state = stored()
    write(state, tmp_path, kind, num_shards)
    model = EveryPair("cpu" if way == "resident" else "meta")
    if way == "disk without folder":
        load_checkpoint_and_dispatch(model, tmp_path, {"": "disk"}, dtype=asked, mmap=mmap)
    elif way == "disk":
        load_checkpoint_in_model(model, tmp_path, {"": "disk"}, tmp_path / "offload", dtype=asked, mmap=mmap)
        dispatch_model(model, {"": "disk"}, offload_dir=tmp_path / "offload")
    else:
        device_map = {"": "cpu"} if way == "map to cpu" else None
        load_checkpoint_in_model(model, tmp_path, device_map, dtype=asked, mmap=mmap)
    found = get_state_dict_offloaded_model(model)
    for name, (in_model, _) in PAIRS.items():
        expected = state[name].to(wanted_dtype(in_model, asked))
        assert found[name].dtype == getattr(model, name).dtype == expected.dtype, name
        assert torch.equal(found[name], expected), name
    assert model.tied is model.float32_from_bfloat16
    assert all(torch.equal(state[name], tensor) for name, tensor in stored().items())


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("asked", [None, torch.bfloat16])
def test_parameters_that_have_values_stay_the_same_objects(tmp_path, mmap, asked):
    model = nn.Linear(3, 5)
    before = list(model.parameters())
    write(nn.Linear(3, 5).state_dict(), tmp_path, "safetensors", 1)
    load_checkpoint_in_model(model, tmp_path, dtype=asked, mmap=mmap)
    assert all(now is then for now, then in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_a_tensor_with_another_layout_or_class_is_filled_in_place(tmp_path, kind):
    class Tagged(nn.Parameter):
        pass

    model = nn.Linear(3, 5)
    model.weight = nn.Parameter(torch.zeros(3, 5).T)
    model.bias = Tagged(torch.zeros(5))
    before, memory = list(model.parameters()), [p.data_ptr() for p in model.parameters()]
    wanted = nn.Linear(3, 5)
    write(wanted.state_dict(), tmp_path, kind, 1)
    load_checkpoint_in_model(model, tmp_path)
    assert all(now is then for now, then in zip(model.parameters(), before, strict=True))
    assert [p.data_ptr() for p in model.parameters()] == memory
    assert all(torch.equal(now, p) for now, p in zip(model.parameters(), wanted.parameters(), strict=True))


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_a_replaced_parameter_keeps_what_it_is(tmp_path, kind):
    linear = nn.Linear(2, 2, device="meta").requires_grad_(False)
    linear.bias.requires_grad_(True)
    linear.bias.note = "kept"
    write(nn.Linear(2, 2).state_dict(), tmp_path, kind, 1)
    load_checkpoint_in_model(linear, tmp_path, dtype=torch.float16)
    assert (linear.weight.requires_grad, linear.bias.requires_grad, linear.bias.note) == (False, True, "kept")
    assert (linear.weight.dtype, type(linear.weight)) == (torch.float16, nn.Parameter)


def test_buffers_and_extra_states_are_loaded(tmp_path):
    class Counting(nn.BatchNorm1d):
        count = 0

        def get_extra_state(self):
            return {"count": self.count}

        def set_extra_state(self, state):
            self.count = state["count"]

    model = Counting(2)
    model.count = 3
    model.running_mean.fill_(7)
    write(model.state_dict(), tmp_path, "torch", 1)
    with torch.device("meta"):
        skeleton = Counting(2)
    load_checkpoint_in_model(skeleton, tmp_path)
    assert dict(skeleton.named_buffers())["running_mean"].tolist() == [7, 7]
    assert (skeleton.count, "running_mean" in dict(skeleton.named_parameters())) == (3, False)


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_an_extra_state_that_is_a_tensor_is_loaded(tmp_path, kind):
    class Counting(nn.Linear):
        count = torch.zeros(1)

        def get_extra_state(self):
            return self.count

        def set_extra_state(self, state):
            self.count = state

    model = Counting(1, 1)
    model.count = torch.tensor([3.0])
    write(model.state_dict(), tmp_path, kind, 1)
    other = Counting(1, 1)
    load_checkpoint_in_model(other, tmp_path, strict=True)
    assert other.count.tolist() == [3]


def test_a_buffer_that_is_a_conjugate_view_gets_the_values_of_the_file(tmp_path):
    model = nn.Module()
    model.register_buffer("phase", torch.zeros(2, dtype=torch.complex64).conj())
    write({"phase": torch.tensor([1 + 2j, 3 - 1j])}, tmp_path, "safetensors", 1)
    load_checkpoint_in_model(model, tmp_path)
    assert model.phase.tolist() == [1 + 2j, 3 - 1j]


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
@pytest.mark.parametrize("width", [8, 2100])  # digests of files over 16 MiB are computed by threads
@pytest.mark.parametrize("options", [{}, {"mmap": True}, {"full_state_dict": False}], ids=str)
def test_a_damaged_file_of_a_checkpoint_with_a_manifest_is_refused(tmp_path, kind, width, options):
    write({"weight": torch.rand(width, width)}, tmp_path, kind, 1)
    [path] = tmp_path.iterdir()
    write_manifest(tmp_path, Manifest([FileEntry(path.name, path.stat().st_size, digest_of(path))]))
    with torch.device("meta"):
        model = nn.Linear(width, width, bias=False)
    load_checkpoint_in_model(model, tmp_path, **options)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{path.name}` is not what was saved: its digest differs"):
        load_checkpoint_in_model(model, tmp_path, **options)


def test_weights_that_stay_on_disk_are_not_read_to_be_compared(tmp_path):
    write({"weight": torch.rand(2, 2)}, tmp_path, "safetensors", 1)
    write_manifest(tmp_path, Manifest([FileEntry("model.safetensors", 1, "xxh3-16m:0")]))
    with torch.device("meta"):
        model = nn.Linear(2, 2, bias=False)
    load_checkpoint_in_model(model, tmp_path, device_map={"": "disk"}, offload_folder=tmp_path / "offload")
    assert model.weight.is_meta


def test_a_device_with_another_name_takes_no_second_copy_of_the_weights(tmp_path):
    class Counting(TorchFunctionMode):
        num_elements = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            self.num_elements += made.numel() if func is torch.empty else 0
            return made

    model = nn.Linear(100, 100)
    wanted = {name: torch.randn_like(tensor) for name, tensor in model.state_dict().items()}
    safetensors.torch.save_file(wanted, tmp_path / "model.safetensors")
    with Counting() as counting:
        load_checkpoint_in_model(model, tmp_path / "model.safetensors", device_map={"": "cpu:0"})
    assert counting.num_elements < 100
    assert torch.equal(model.weight, wanted["weight"])


def test_an_expanded_buffer_gets_the_values_of_the_file(tmp_path):
    model = nn.Module()
    model.register_buffer("table", torch.zeros(1, 3).expand(2, 3))
    safetensors.torch.save_file({"table": torch.arange(6.0).view(2, 3)}, tmp_path / "model.safetensors")
    load_checkpoint_in_model(model, tmp_path)
    assert model.table.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_a_single_tensor_on_disk_is_an_error_that_names_it(tmp_path):
    model = nn.Linear(2, 2, device="meta")
    safetensors.torch.save_file(nn.Linear(2, 2).state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="`device_map` puts the tensor `weight` on `disk`"):
        load_checkpoint_and_dispatch(
            model, tmp_path, {"weight": "disk", "bias": "cpu"}, offload_folder=tmp_path / "offload"
        )
