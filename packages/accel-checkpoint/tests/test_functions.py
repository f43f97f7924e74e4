import os
import pickle

import pytest
import torch

from accel_checkpoint import load, load_custom_state, save, save_custom_state
from accel_state import PartialState
from accel_state.errors import ConfigError

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


def test_names_that_a_file_leaves_out_are_told(tmp_path):
    weight = torch.ones(2)
    with pytest.warns(UserWarning, match="`b` shared memory with other tensors"):
        save({"a": weight, "b": weight}, tmp_path / "weights.safetensors", safe_serialization=True)


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


def test_custom_objects_have_their_files(tmp_path):
    save_custom_state(Meter(), tmp_path, index=2)
    other = Meter()
    other.total = 0
    load_custom_state(other, tmp_path, index=2)
    assert other.total == 3
    assert os.listdir(tmp_path) == ["custom_checkpoint_2.pkl"]
