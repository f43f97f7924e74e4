import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch

from accel_checkpoint import load, load_custom_state, save, save_custom_state
from accel_state import PartialState
from accel_state.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.usefixtures("fresh_state")


class Meter:
    total = 3

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]


@pytest.fixture(autouse=True)
def process(fresh_state):
    PartialState(cpu=True)


@pytest.mark.parametrize("safe", [True, False])
def test_what_is_saved_is_loaded(tmp_path, safe):
    content = {"a": torch.arange(3), "b": torch.ones(2, 2)}
    save(content, tmp_path / "file", safe_serialization=safe)
    if safe:
        from safetensors.torch import load_file

        loaded = load_file(tmp_path / "file")
    else:
        loaded = load(tmp_path / "file")
    assert {name: value.tolist() for name, value in loaded.items()} == {"a": [0, 1, 2], "b": [[1, 1], [1, 1]]}
    assert os.listdir(tmp_path) == ["file"]


def test_names_that_a_file_leaves_out_are_logged(tmp_path, caplog):
    weight = torch.ones(2)
    save({"a": weight, "b": weight}, tmp_path / "weights.safetensors", safe_serialization=True)
    assert "Removed shared tensors `b`" in caplog.text


def test_a_save_that_fails_leaves_the_file_as_it_was(tmp_path):
    save({"a": 1}, tmp_path / "file")
    with pytest.raises((AttributeError, pickle.PicklingError)):
        save({"a": lambda: None}, tmp_path / "file")
    assert load(tmp_path / "file") == {"a": 1}
    assert os.listdir(tmp_path) == ["file"]


def test_free_unpickling_is_rejected(tmp_path):
    save({"a": 1}, tmp_path / "file")
    with pytest.raises(ConfigError, match="never unpickles freely"):
        load(tmp_path / "file", weights_only=False)
    torch.save(Meter(), tmp_path / "file")
    with pytest.raises(pickle.UnpicklingError):
        load(tmp_path / "file")


def forged_array():
    """Return an archive with an array whose dtype has a field outside of it, which NumPy does not check."""
    content = io.BytesIO()
    torch.save({"a": np.zeros(1, "i8")}, content)
    with zipfile.ZipFile(content) as saved:
        pickled = saved.read("archive/data.pkl")
    plain, forged = (
        b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t",
        (
            b"NX\x01\x00\x00\x00b\x85}X\x01\x00\x00\x00bcnumpy\ndtype\nX\x02\x00\x00\x00i8\x85RM\xff\x7f\x86s"
            b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t"
        ),
    )
    assert pickled.count(plain) == 1
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("archive/data.pkl", pickled.replace(plain, forged))
        archive.writestr("archive/version", b"3\n")
    return made.getvalue()


@pytest.mark.parametrize("as_path", [True, False])
def test_a_forged_array_is_refused(tmp_path, as_path):
    (tmp_path / "file").write_bytes(forged_array())
    source = tmp_path / "file" if as_path else io.BytesIO(forged_array())
    with pytest.raises(CheckpointError, match="whose argument is not written out") as caught:
        load(source)
    assert isinstance(caught.value, pickle.UnpicklingError)


@pytest.mark.parametrize("is_archive", [True, False])
def test_an_open_file_is_loaded(tmp_path, is_archive):
    torch.save({"a": torch.arange(3)}, tmp_path / "file", _use_new_zipfile_serialization=is_archive)
    with (tmp_path / "file").open("rb") as file:
        assert load(file)["a"].tolist() == [0, 1, 2]
    assert load(tmp_path / "file", map_location="meta")["a"].is_meta


@pytest.mark.parametrize("number", [0, 1])
def test_each_pickle_of_a_file_that_is_no_archive_is_checked(tmp_path, number):
    torch.save({"a": 1}, tmp_path / "file", _use_new_zipfile_serialization=False)
    with (tmp_path / "file").open("rb") as file:
        pickles = [pickle.load(file) for _ in range(4)]
    content = [pickle.dumps(one, 2) for one in pickles]
    content[number * 3] = b"\x80\x02cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R."
    (tmp_path / "file").write_bytes(b"".join(content))
    with pytest.raises(CheckpointError, match="whose argument is not written out"):
        load(tmp_path / "file")


def test_custom_objects_have_their_files(tmp_path):
    save_custom_state(Meter(), tmp_path, index=2)
    other = Meter()
    other.total = 0
    load_custom_state(other, tmp_path, index=2)
    assert other.total == 3
    assert os.listdir(tmp_path) == ["custom_checkpoint_2.pkl"]


@pytest.mark.parametrize("location", ["banana", 7, ""])
def test_a_map_location_that_is_no_device_is_an_error(tmp_path, location):
    torch.save({"a": torch.ones(1)}, tmp_path / "file")
    with pytest.raises(ConfigError, match=f"`map_location` must name a device such as .*, got `{location}`"):
        load(tmp_path / "file", location)


@pytest.mark.parametrize(
    "location", [None, "cpu", torch.device("cpu"), {"cuda:0": "cpu"}, lambda one, _: one]
)
def test_what_torch_takes_as_a_map_location_is_taken(tmp_path, location):
    torch.save({"a": torch.ones(1)}, tmp_path / "file")
    assert load(tmp_path / "file", location)["a"].device.type == "cpu"
