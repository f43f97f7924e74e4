import pytest
import torch
from safetensors.torch import load_file

from accel_backends.checkpoint_formats.full import FullFormat
from accel_checkpoint.pieces import Piece, pieces_of
from accel_checkpoint.saving.pending_files import write_file
from accel_state.errors import CheckpointError

WEIGHT = torch.arange(6.0).reshape(2, 3)
STATE = {"w": WEIGHT, "tied": WEIGHT, "b": torch.ones(2)}


def files_of(state, *, is_writer=True, **options):
    options = {"index": 0, "safe": True, "max_shard_size": None, **options}
    return FullFormat().model_files(pieces_of(state, is_writer=is_writer), is_writer=is_writer, **options)


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("max_shard_size", [None, 24])
@pytest.mark.parametrize("index", [0, 1])
def test_what_is_written_is_recognised_and_read(tmp_path, safe, max_shard_size, index):
    for file in files_of(STATE, safe=safe, max_shard_size=max_shard_size, index=index):
        write_file(file, tmp_path)
    names = [path.name for path in tmp_path.iterdir()]
    assert len(names) == (1 if max_shard_size is None else 3)
    assert FullFormat().recognises(names, index=index)
    assert not FullFormat().recognises(names, index=index + 1)
    expected = dict(STATE)
    if safe and max_shard_size is not None:
        del expected["tied"]  # an index names the tensors that are stored, as everybody's does
    with FullFormat().open_model(tmp_path, index=index) as state:
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[name], value) for name, value in expected.items())


def test_other_readers_find_tied_weights_once(tmp_path):
    [file] = files_of(STATE)
    write_file(file, tmp_path)
    assert sorted(load_file(tmp_path / "model.safetensors")) == ["b", "w"]


def test_a_rank_that_only_has_copies_writes_nothing():
    assert files_of(STATE, is_writer=False) == []
    assert [file.name for file in files_of({})] == ["model.safetensors"]


def test_parts_of_a_tensor_are_refused():
    part = Piece("w", WEIGHT[:1], (2, 3), (0, 0))
    with pytest.raises(CheckpointError, match="`w` of model 3 is spread over several ranks"):
        FullFormat().model_files([part], index=3, is_writer=True, safe=True, max_shard_size=None)
