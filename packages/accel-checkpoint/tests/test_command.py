import argparse
import subprocess
import sys

import pytest
import torch

from accel_checkpoint import CheckpointFolder
from accel_checkpoint.command import command
from accel_state import PartialState
from accel_state.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("fresh_state")


def main(*words):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(word) for word in words]))


@pytest.fixture
def project(fresh_state, tmp_path):
    PartialState(cpu=True)
    folder = CheckpointFolder(tmp_path / "checkpoints")
    for step in range(11):
        with folder.save(step) as stage:
            stage.write("model.safetensors", {"weight": torch.zeros(100, 100)})
    return tmp_path


def test_checkpoints_are_listed_by_number_with_their_state(project, capsys):
    (project / "checkpoints" / "checkpoint_3" / "accel_checkpoint.json").unlink()
    (project / "checkpoints" / "checkpoint_4" / "model.safetensors").write_bytes(b"")
    assert main("list", project) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["checkpoint", "step", "size", "age", "processes", "state"]
    assert [line[0] for line in lines[1:]] == [f"checkpoint_{number}" for number in range(11)]
    assert [line[-1] for line in lines[3:7]] == ["committed", "incomplete", "damaged", "committed"]
    assert lines[2][1] == "1"
    assert lines[1][-2] == "1"


def test_an_unchanged_checkpoint_passes(project, capsys):
    assert main("verify", project / "checkpoints" / "checkpoint_2") == 0
    assert "as they were saved" in capsys.readouterr().out


def test_a_changed_checkpoint_is_reported_with_the_file(project, capsys):
    path = project / "checkpoints" / "checkpoint_2" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert main("verify", project) == 1
    captured = capsys.readouterr()
    assert "checkpoint_2: `model.safetensors` is not what was saved" in captured.err
    assert captured.out.count("as they were saved") == 10


def test_a_folder_without_checkpoints_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="There is no checkpoint in"):
        main("list", tmp_path)
    with pytest.raises(CheckpointError, match="There is no folder"):
        main("verify", tmp_path / "nothing")


def test_no_torch_is_needed():
    code = "import sys, accel_checkpoint.command; sys.exit(int('torch' in sys.modules or 'numpy' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=180).returncode == 0
