import subprocess
import sys

import pytest
from torch import nn

from accel import Accelerator, ProjectConfiguration
from accel_launch.cli import main

pytestmark = pytest.mark.usefixtures("fresh_state")


@pytest.fixture
def project(tmp_path):
    configuration = ProjectConfiguration(project_dir=str(tmp_path), automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=configuration)
    accelerator.prepare(nn.Linear(100, 100))
    for _ in range(11):
        accelerator.save_state()
    return tmp_path


def test_checkpoints_are_listed_by_number_with_their_state(project, capsys):
    (project / "checkpoints" / "checkpoint_3" / "accel_checkpoint.json").unlink()
    (project / "checkpoints" / "checkpoint_4" / "model.safetensors").write_bytes(b"")
    assert main(["checkpoint", "list", str(project)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["checkpoint", "step", "size", "age", "processes", "state"]
    assert [line[0] for line in lines[1:]] == [f"checkpoint_{number}" for number in range(11)]
    assert [line[-1] for line in lines[3:7]] == ["committed", "incomplete", "damaged", "committed"]
    assert lines[1][1] == "0"
    assert lines[1][-2] == "1"


def test_one_that_is_as_it_was_saved_passes(project, capsys):
    assert main(["checkpoint", "verify", str(project / "checkpoints" / "checkpoint_2")]) == 0
    assert "as they were saved" in capsys.readouterr().out


def test_one_that_changed_is_told_with_its_file(project, capsys):
    path = project / "checkpoints" / "checkpoint_2" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert main(["checkpoint", "verify", str(project)]) == 1
    captured = capsys.readouterr()
    assert "checkpoint_2: `model.safetensors` is not what was saved" in captured.err
    assert captured.out.count("as they were saved") == 10


def test_a_folder_without_checkpoints_is_told(tmp_path, capsys):
    assert main(["checkpoint", "list", str(tmp_path)]) == 1
    assert "There is no checkpoint in" in capsys.readouterr().err


def test_no_torch_is_needed():
    code = "import sys, accel.commands.checkpoint; sys.exit(int('torch' in sys.modules or 'numpy' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
