"""A checkpoint with values that are not finite never takes the place of the last finite one."""

import math
import os
import warnings

import pytest
import torch

from accel_checkpoint import CheckpointFolder, SavedCheckpoint
from accel_checkpoint.command import as_table, find
from accel_checkpoint.tensors import is_finite
from accel_state import PartialState

pytestmark = pytest.mark.usefixtures("fresh_state")

NAN, INF = math.nan, math.inf


@pytest.fixture(autouse=True)
def process(fresh_state):
    PartialState(cpu=True)


def save(folder, step, value, name="model.safetensors"):
    inner = torch.tensor([1.0, value])
    with folder.save(step) as stage:
        stage.write(
            name, {"b": {"c": inner}} if name.endswith(".bin") else {"a": torch.ones(3), "b.c": inner}
        )


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.float8_e5m2]
)
def test_nan_and_infinity_are_found_in_every_dtype(dtype):
    tensor = torch.ones(1000).to(dtype)
    assert is_finite(tensor)
    for value in (NAN, INF):
        tensor[500] = torch.tensor(value).to(dtype)
        assert not is_finite(tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(0),
        torch.ones(3, dtype=torch.int64),
        torch.tensor([0.0, -INF]),
        torch.eye(2).to_sparse(),
        torch.full((2,), 255, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    ],
    ids=["empty", "integers", "mask", "sparse", "4-bit"],
)
def test_tensors_that_are_no_sign_of_a_failed_training_count_as_finite(tensor):
    assert is_finite(tensor)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "optimizer_1.bin"])
@pytest.mark.parametrize("value", [NAN, INF])
def test_the_manifest_and_a_warning_name_the_tensor(tmp_path, name, value):
    folder = CheckpointFolder(tmp_path)
    with pytest.warns(
        UserWarning, match=rf"not finite are saved, first in `b.c` of `{name}`. The last finite"
    ):
        save(folder, 1, value, name)
    assert folder.newest().manifest.nonfinite == f"`b.c` of `{name}`"
    assert as_table(find(tmp_path)).endswith("committed, not finite")


@pytest.mark.parametrize(("name", "value"), [("optimizer.bin", "lr"), ("scaler.pt", "scale")])
def test_a_number_that_is_nan_counts_too_but_a_limit_may_be_infinite(tmp_path, name, value):
    folder = CheckpointFolder(tmp_path)
    with (
        pytest.warns(UserWarning, match=rf"first in `groups.0.{value}` of `{name}`"),
        folder.save(1) as stage,
    ):
        stage.write(name, {"groups": [{"growth_rate": INF, value: NAN}]})
    assert folder.newest().manifest.nonfinite


@pytest.mark.parametrize("name", ["metrics.bin", "accumulated_gradients_0.safetensors"])
def test_values_that_are_not_trained_may_be_anything(tmp_path, name):
    folder = CheckpointFolder(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(folder, 1, NAN, name)
    assert not folder.newest().manifest.nonfinite


@pytest.mark.filterwarnings("ignore:Values that are not finite")
@pytest.mark.parametrize("keep", [1, 2])
def test_retention_keeps_the_newest_finite_checkpoint_beyond_its_limit(tmp_path, keep):
    folder = CheckpointFolder(tmp_path, keep=keep)
    save(folder, 0, 1.0)
    save(folder, 1, 1.0)
    for step in range(2, 5):
        save(folder, step, NAN)
    with pytest.warns(UserWarning, match=f"checkpoint_1` is kept beyond the limit of {keep}"):
        save(folder, 5, NAN)
    rest = [f"checkpoint_{step}" for step in range(6 - keep, 6)]
    assert sorted(os.listdir(tmp_path)) == ["checkpoint_1", *rest]
    for step in range(6, 9):
        save(folder, step, 1.0)
    assert sorted(os.listdir(tmp_path)) == [f"checkpoint_{step}" for step in range(9 - keep, 9)]


@pytest.mark.filterwarnings("ignore:Values that are not finite")
def test_a_finite_checkpoint_of_the_same_name_is_kept_next_to_the_new_one(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 1, 5.0)
    with pytest.warns(UserWarning, match="checkpoint_1-last-finite` is the checkpoint that was replaced"):
        save(folder, 1, NAN)
    save(folder, 1, NAN)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint_1", "checkpoint_1-last-finite"]
    kept = SavedCheckpoint(tmp_path / "checkpoint_1-last-finite")
    kept.verify()
    assert kept.read("model.safetensors")["b.c"][1] == 5
    save(folder, 1, 6.0)
    with pytest.warns(UserWarning, match="last-finite"):
        save(folder, 1, NAN)
    assert SavedCheckpoint(kept.path).read("model.safetensors")["b.c"][1] == 6


@pytest.mark.filterwarnings("ignore:Values that are not finite")
def test_in_the_working_directory_the_finite_checkpoint_is_kept_in_a_folder_of_it(tmp_path, monkeypatch):
    (tmp_path / "checkpoint_1").mkdir()
    monkeypatch.chdir(tmp_path / "checkpoint_1")
    folder = CheckpointFolder(tmp_path)
    save(folder, 1, 5.0)
    with pytest.warns(UserWarning, match="last-finite` is the checkpoint that was replaced"):
        save(folder, 1, NAN)
    [kept] = tmp_path.glob("checkpoint_1/*-last-finite")
    assert SavedCheckpoint(kept).read("model.safetensors")["b.c"][1] == 5
