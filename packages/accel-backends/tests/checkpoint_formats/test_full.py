import pytest
import torch
from safetensors.torch import load_file

from accel_backends.checkpoint_formats.full import FullFormat
from accel_backends.checkpoint_formats.protocol import SaveChoices
from accel_checkpoint.manifest import saved_files
from accel_checkpoint.saving.pending_files import write_file

WEIGHT = torch.arange(6.0).reshape(2, 3)
STATE = {"w": WEIGHT, "tied": WEIGHT, "b": torch.ones(2)}


def files_of(state, *, is_writer=True, **options):
    index = options.pop("index", 0)
    choices = SaveChoices(rank=0, is_writer=is_writer, **options)
    return FullFormat().model_files(state, index=index, choices=choices)


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("max_shard_size", [None, 24])
@pytest.mark.parametrize("index", [0, 1])
def test_what_is_written_is_recognised_and_read(tmp_path, safe, max_shard_size, index):
    for file in files_of(STATE, safe=safe, max_shard_size=max_shard_size, index=index):
        write_file(file, tmp_path)
    names = [path.name for path in tmp_path.iterdir()]
    assert len(names) == (1 if max_shard_size is None else 3)
    assert FullFormat().indexes_in(names) == ([index], [])
    expected = dict(STATE)
    if safe and max_shard_size is not None:
        del expected["tied"]  # an index names the tensors that are stored, like any other index
    state = FullFormat().open_state(saved_files(tmp_path), index=index)
    assert state.shapes == {name: tuple(value.shape) for name, value in expected.items()}
    assert all(torch.equal(state.read({})[name], value) for name, value in expected.items())


def test_other_readers_find_tied_weights_once(tmp_path):
    [file] = files_of(STATE)
    write_file(file, tmp_path)
    assert sorted(load_file(tmp_path / "model.safetensors")) == ["b", "w"]


def test_a_rank_that_only_has_copies_writes_nothing():
    assert files_of(STATE, is_writer=False) == []
    assert [file.name for file in files_of({})] == ["model.safetensors"]
