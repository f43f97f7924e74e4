import pytest
import torch
import torch.distributed.checkpoint as dcp

from accel_checkpoint.formats.distributed import DistributedState
from accel_checkpoint.manifest import saved_files
from accel_checkpoint.merging import merged_state

WEIGHT = torch.arange(12.0).reshape(3, 4)
STATE = {
    "embed": WEIGHT,
    "head": WEIGHT,
    "nearly": WEIGHT + torch.tensor([0.0] * 3 + [1e-3]),
    "zeros": torch.zeros(3, 4),
    "other zeros": torch.zeros(3, 4),
    "bias": torch.arange(4.0),
    "other bias": torch.arange(4.0),
    "note": "text",
}


def test_weights_of_other_writers_are_merged_as_they_are(tmp_path):
    dcp.save({"model": STATE}, checkpoint_id=tmp_path, no_dist=True)
    state = merged_state(DistributedState(saved_files(tmp_path), ""), "model")
    tensors = [name for name in STATE if name != "note"]
    assert len({id(state[name]) for name in tensors}) == len(tensors)
    assert all(torch.equal(state[name].fetch(), STATE[name]) for name in tensors)
    assert state["note"] == "text"


@pytest.mark.parametrize(("prefix", "name"), [((), "model.a.b"), (("model",), "a.b")])
def test_names_are_those_below_the_path(tmp_path, prefix, name):
    dcp.save({"model": {"a": {"b": WEIGHT}}}, checkpoint_id=tmp_path, no_dist=True)
    assert list(merged_state(DistributedState(saved_files(tmp_path), ""), *prefix)) == [name]
