import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from accel_checkpoint.formats.weight_files import DTYPES, read_layout
from accel_checkpoint.saving.pending_files import write_safetensors
from accel_state.errors import CheckpointError

FLOAT8 = {dtype for dtype in DTYPES.values() if dtype.is_floating_point and dtype.itemsize == 1}


def write(path, tensors):
    with path.open("wb") as file:
        write_safetensors(file, tensors, metadata={"format": "pt"})
    return path


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_type_comes_back(tmp_path, dtype):
    # Ones alone where that is all a type of eight bits can hold besides powers of two.
    numbers = torch.ones(3, 5) if dtype in FLOAT8 else torch.arange(15).reshape(3, 5) % 2
    tensor = numbers.to(dtype)
    given = {"x": tensor, "y.z": tensor.T, "empty": tensor[:0], "one": tensor[0, 0]}
    loaded = load_file(write(tmp_path / "m.safetensors", given))
    assert set(loaded) == set(given)
    for name, wanted in given.items():
        assert (loaded[name].dtype, loaded[name].shape) == (dtype, wanted.shape)
        assert loaded[name].tolist() == wanted.tolist()
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_a_tensor_with_the_name_of_the_metadata_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="cannot store a tensor called `__metadata__`"):
        write(tmp_path / "m.safetensors", {"__metadata__": torch.ones(2)})


def test_views_that_only_promise_their_values_are_written_with_them(tmp_path):
    numbers = torch.tensor([1 + 2j, 3 - 1j])
    given = {
        "conjugate": numbers.conj(),
        "negative": numbers.conj().imag,
        "learned": torch.nn.Parameter(torch.ones(2)),
    }
    loaded = load_file(write(tmp_path / "m.safetensors", given))
    assert loaded["conjugate"].tolist() == [1 - 2j, 3 + 1j]
    assert loaded["negative"].tolist() == [-2, 1]
    assert loaded["learned"].tolist() == [1, 1]


def test_whole_blocks_of_64_bytes_begin_at_multiples_of_it(tmp_path):
    given = {
        "a": torch.ones(3),
        "g": torch.rand(16, 16),
        "h é": torch.rand(64).half(),
        "n": torch.ones(5).byte(),
    }
    path = write(tmp_path / "m.safetensors", given)
    layout = read_layout(path)
    assert layout.ranges["g"].start % 64 == layout.ranges["h é"].start % 64 == 0
    loaded = load_file(path)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in given.items())


def test_a_type_without_a_name_is_rejected(tmp_path):
    with pytest.raises(CheckpointError, match="no type for `x`.*complex128"):
        write(tmp_path / "m.safetensors", {"x": torch.zeros(2, dtype=torch.complex128)})
