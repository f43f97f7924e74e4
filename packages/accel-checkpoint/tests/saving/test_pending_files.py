import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_checkpoint.files import digest_of
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.saving.model_weights import pending_weights
from accel_checkpoint.saving.pending_files import TorchFile, write_file, write_files
from accel_state.errors import CheckpointError


def test_the_digest_is_that_of_the_file(tmp_path):
    entries = write_files(
        [
            TorchFile("a.bin", {"x": torch.randn(3_000_000)}),
            TorchFile("b.bin", {"n": [1, "s", None, 2.5, True]}),
        ],
        tmp_path,
        num_threads=2,
    )
    assert [entry.name for entry in entries] == ["a.bin", "b.bin"]
    for entry in entries:
        content = (tmp_path / entry.name).read_bytes()
        assert (entry.num_bytes, entry.digest) == (len(content), digest_of(tmp_path / entry.name))


def test_several_files_are_written_in_forked_processes(tmp_path):
    files = [
        file
        for index in range(4)
        for file in pending_weights({"a": torch.ones(50_000)}, index=index, safe=True, max_shard_size=None)
    ]
    torch.set_num_threads(torch.get_num_threads())  # makes the pool that a forked process replaces
    codes = []
    for number in range(30):
        (folder := tmp_path / str(number)).mkdir()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                write_files(files, folder, num_threads=4)
                code = 0
            finally:
                os._exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    assert codes == [0] * 30


def test_an_existing_file_is_not_overwritten(tmp_path):
    (tmp_path / "a.bin").write_text("")
    with pytest.raises(FileExistsError):
        write_file(TorchFile("a.bin", 1), tmp_path)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.builds(bytearray, st.binary(max_size=3)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 5), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(PLAIN)
def test_whatever_may_be_saved_can_be_loaded(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("plain")
    write_file(TorchFile("a.bin", content), folder)
    assert read_torch_file(folder / "a.bin") == content


@pytest.mark.parametrize(
    "value", [np.float64(1.5), np.int32(3), np.bool_(True), np.arange(3), np.ones((2, 2), np.float32)]
)
def test_numbers_of_numpy_may_be_saved(tmp_path, value):
    write_file(TorchFile("a.bin", {"value": value}), tmp_path)
    loaded = read_torch_file(tmp_path / "a.bin")["value"]
    assert np.array_equal(loaded, value)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"a": {"b": [1, object()]}}, r"`a.b.1` is a `builtins.object`"),
        ({"f": print}, r"`f` is a `builtins.builtin_function_or_method`"),
        ({"o": np.array([object()])}, r"`o` is a `numpy.ndarray`"),
        (object(), r"`its content` is a `builtins.object`"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(content, match):
    with pytest.raises(CheckpointError, match=match):
        TorchFile("a.bin", content)


def test_weights_on_the_meta_device_are_rejected():
    with pytest.raises(CheckpointError, match="`w` of model 2 cannot be saved: on the meta device"):
        pending_weights({"w": torch.empty(2, device="meta")}, index=2, safe=True, max_shard_size=None)


class Marked(torch.Tensor):
    """A tensor whose class torch knows nothing of."""


def test_a_tensor_whose_class_could_not_be_loaded_is_not_saved(tmp_path):
    marked = torch.ones(2).as_subclass(Marked)
    with pytest.raises(CheckpointError, match=r"`state` is a `.*Marked`.*add_safe_globals"):
        write_file(TorchFile("a.bin", {"state": marked}), tmp_path)
    with torch.serialization.safe_globals([Marked]):
        write_file(TorchFile("b.bin", {"state": marked}), tmp_path)
        assert type(read_torch_file(tmp_path / "b.bin")["state"]) is Marked
    write_file(TorchFile("c.bin", {"state": torch.nn.Parameter(torch.ones(2))}), tmp_path)
