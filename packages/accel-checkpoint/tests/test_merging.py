"""Parts of a sharded model become weight files that plain PyTorch reads."""

import argparse

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from accel_checkpoint.formats.weight_files import checkpoint_files, read_weights
from accel_checkpoint.merge_command import command
from accel_checkpoint.merging import merge_fsdp_weights, merge_parts
from accel_checkpoint.pieces import pieces_of
from accel_checkpoint.saving.distributed_files import part_of_rank
from accel_checkpoint.saving.pending_files import write_file
from accel_state.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.usefixtures("fresh_state")


def make_model(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 5))
    model[2].weight = model[0].weight
    return model


@pytest.fixture
def parts(tmp_path):
    """A folder as torch and Accelerate write it: each name of tied weights with its own values."""
    folder = tmp_path / "pytorch_model_fsdp_0"
    dcp.save({"model": make_model().state_dict()}, checkpoint_id=folder, no_dist=True)
    return folder


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("max_shard_size", [None, 120])
def test_the_model_comes_back_from_one_file_or_several(parts, tmp_path, safe, max_shard_size):
    out = tmp_path / "out"
    merge_fsdp_weights(parts, out, safe_serialization=safe, max_shard_size=max_shard_size)
    assert len(list(out.iterdir())) == 1 if max_shard_size is None else len(list(out.iterdir())) > 2
    merged = {}
    for file in checkpoint_files(out):
        merged.update(read_weights(file.path))
    wanted = make_model().state_dict()
    assert set(merged) == set(wanted)
    for name, value in wanted.items():
        assert torch.equal(merged[name], value), name


def test_tied_weights_are_stored_once(tmp_path):
    state, folder = make_model().state_dict(), "pytorch_model_fsdp_0"
    file = part_of_rank(
        folder, pieces_of(state, is_writer=True), {name: ("model", name) for name in state}, rank=0
    )
    write_file(file, tmp_path)
    write_file(file.table([file.name]), tmp_path)
    merge_fsdp_weights(tmp_path / folder, tmp_path / "out")
    merged = load_file(tmp_path / "out" / "model.safetensors")
    assert set(state) - set(merged) == {"2.weight"}


@pytest.mark.parametrize("safe", [True, False])
def test_a_long_merge_shows_how_much_of_the_full_model_is_written(parts, tmp_path, capsys, safe):
    pytest.importorskip("tqdm")
    merge_parts(parts, tmp_path / "out", is_safe=safe, max_shard_size=120, quiet_s=0)
    last = capsys.readouterr().err.splitlines()[-1]
    assert "Merging pytorch_model_fsdp_0: 100%" in last
    assert "328/328" in last


def test_a_short_merge_shows_nothing(parts, tmp_path, capsys):
    merge_parts(parts, tmp_path / "out", is_safe=True, max_shard_size=120, quiet_s=20)
    assert capsys.readouterr().err == ""


def test_the_parts_are_removed_on_request_only(parts, tmp_path):
    merge_fsdp_weights(parts, tmp_path / "out")
    assert parts.is_dir()
    merge_fsdp_weights(parts, tmp_path / "out", remove_checkpoint_dir=True)
    assert not parts.exists()


def test_a_folder_without_parts_is_refused_with_those_inside_of_it(parts, tmp_path):
    with pytest.raises(CheckpointError, match="Name one of the folders in it: `pytorch_model_fsdp_0`"):
        merge_fsdp_weights(tmp_path, tmp_path / "out")
    with pytest.raises(CheckpointError, match="nowhere` is not a folder"):
        merge_fsdp_weights(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(ConfigError, match="inside of"):
        merge_fsdp_weights(parts, parts / "merged")


def test_the_state_of_an_optimizer_is_refused(tmp_path):
    dcp.save({"optimizer": {"state": {"w": torch.ones(2)}}}, checkpoint_id=tmp_path / "o", no_dist=True)
    with pytest.raises(CheckpointError, match="contains optimizer state"):
        merge_fsdp_weights(tmp_path / "o", tmp_path / "out")


def test_the_command_takes_the_documented_options(parts, tmp_path, capsys):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    out = str(tmp_path / "out")
    options = parser.parse_args([str(parts), out, "--unsafe_serialization", "--remove_checkpoint_dir"])
    assert command.run(options) == 0
    assert (tmp_path / "out" / "pytorch_model.bin").is_file()
    assert not parts.exists()
    assert out in capsys.readouterr().out
