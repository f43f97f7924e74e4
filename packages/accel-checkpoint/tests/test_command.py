import argparse
import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from accel_checkpoint import CheckpointFolder, progress
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


def test_tables_are_printed_as_json_too(project, two, capsys):
    folder = project / "checkpoints"
    (folder / "checkpoint_3" / "accel_checkpoint.json").unlink()
    assert main("list", "--json", project) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [Path(row["path"]).name for row in rows] == [f"checkpoint_{number}" for number in range(11)]
    assert rows[2]["step"] == 2
    assert rows[2]["num_processes"] == 1
    assert rows[2]["num_bytes"] > 40000
    assert [rows[2]["state"], rows[3]["state"], rows[3]["step"]] == ["committed", "incomplete", None]
    assert main("verify", "--json", folder) == 1
    problems = {Path(row["path"]).name: row["problems"] for row in json.loads(capsys.readouterr().out)}
    assert [name for name, found in problems.items() if found] == ["checkpoint_3"]
    assert main("show", "--json", two[0]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown[0] == {"group": "model 0", "name": "half", "kind": "float32 (2, 3)"}
    assert main("diff", "--json", *two) == 1
    differing = {
        row["name"]: (row["change"], row["difference"]) for row in json.loads(capsys.readouterr().out)
    }
    assert differing["model 0: new"] == ("added", "float32 (2, 3)")
    assert differing["optimizer.bin: lr"] == ("changed", "0.1 -> 0.2")
    assert main("diff", "--json", two[0], two[0]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_weights_of_save_model_are_no_checkpoint(project, tmp_path, capsys):
    (project / "exported").mkdir()
    torch.save({}, project / "exported" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="There is no checkpoint in `.*exported`"):
        main("list", project / "exported")
    (project / "exported").rename(project / "checkpoints" / "exported")
    torch.save({}, project / "pytorch_model.bin")
    assert main("list", project) == 0
    listed = capsys.readouterr().out
    assert "checkpoint_10" in listed
    assert "exported" not in listed


def test_a_long_verification_shows_how_much_is_read(project, capsys, monkeypatch):
    pytest.importorskip("tqdm")
    folder = project / "checkpoints" / "checkpoint_2"
    assert main("verify", folder) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "QUIET_S", 0)
    assert main("verify", folder) == 0
    assert "Verifying checkpoint_2" in capsys.readouterr().err


def test_output_may_be_read_in_part(project):
    """As by `| head`."""
    folder = project / "checkpoints" / "checkpoint_2"
    program = f"{shlex.quote(sys.executable)} -m accel_launch checkpoint show {shlex.quote(str(folder))}"
    command = ["sh", "-c", f"({program}; echo $? >&2) | true"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180)
    assert ended.stderr == "1\n"


def test_an_unchanged_checkpoint_passes(project, capsys):
    assert main("verify", project / "checkpoints" / "checkpoint_2") == 0
    assert "unchanged since the save" in capsys.readouterr().out


def test_a_changed_checkpoint_is_reported_with_the_file(project, capsys):
    path = project / "checkpoints" / "checkpoint_2" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert main("verify", project) == 1
    captured = capsys.readouterr()
    assert "checkpoint_2: `model.safetensors` is not what was saved" in captured.err
    assert captured.out.count("unchanged since the save") == 10


def test_a_folder_without_checkpoints_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="There is no checkpoint in"):
        main("list", tmp_path)
    with pytest.raises(CheckpointError, match="There is no folder"):
        main("verify", tmp_path / "nothing")


def test_no_torch_is_needed():
    code = "import sys, accel_checkpoint.command; sys.exit(int('torch' in sys.modules or 'numpy' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=180).returncode == 0


@pytest.fixture
def two(fresh_state, tmp_path):
    """Two checkpoints that differ in one weight, a dtype, a number and a name."""
    PartialState(cpu=True)
    folder = CheckpointFolder(tmp_path)
    weight = torch.arange(6.0).view(2, 3)
    for number, (change, dtype, lr, name) in enumerate(
        [(0.0, torch.float32, 0.1, "old"), (0.5, torch.bfloat16, 0.2, "new")]
    ):
        with folder.save(number) as stage:
            changed = weight.clone()
            changed[0, 1] += change
            same = torch.tensor([float("nan"), 1.0])
            stage.write(
                "model.safetensors",
                {"weight": changed, "half": weight.to(dtype), name: weight.clone(), "same": same},
            )
            stage.write(
                "optimizer.bin", {"state": {0: {"step": torch.tensor(number)}}, "lr": lr, "betas": (0.9, 1)}
            )
    return tmp_path / "checkpoint_0", tmp_path / "checkpoint_1"


def test_show_lists_everything_with_dtype_and_shape(two, capsys):
    assert main("show", two[0]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "model 0",
        "  half  float32 (2, 3)",
        "  old  float32 (2, 3)",
        "  same  float32 (2)",
        "  weight  float32 (2, 3)",
        "optimizer.bin",
        "  state.0.step  int64 ()",
        "  lr  float",
        "  betas  tuple",
    ]


def test_diff_names_what_differs_and_how(two, capsys):
    assert main("diff", *two) == 1
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "+ model 0: new float32 (2, 3)",
        "- model 0: old float32 (2, 3)",
        "~ model 0: half float32 (2, 3) -> bfloat16 (2, 3)",
        "~ model 0: weight 1 of 6 values differ, by at most 0.5",
        "~ optimizer.bin: lr 0.1 -> 0.2",
        "~ optimizer.bin: state.0.step 1 of 1 values differ",
    ]
    assert main("diff", "--names-only", *two) == 1
    assert "values differ" not in capsys.readouterr().out
    assert main("diff", two[0], two[0]) == 0
    assert capsys.readouterr().out == ""


def test_show_and_diff_name_a_folder_that_is_no_checkpoint(tmp_path):
    (tmp_path / "notes").mkdir()
    with pytest.raises(CheckpointError, match="There is no checkpoint in `.*notes`"):
        main("show", tmp_path / "notes")
    with pytest.raises(CheckpointError, match="There is no folder `.*nothing`"):
        main("diff", tmp_path / "notes", tmp_path / "nothing")


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.bin"])
def test_a_damaged_file_is_named(two, name):
    path = two[0] / name
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CheckpointError, match=name):
        main("show", two[0])


def test_a_pinned_checkpoint_is_listed_as_such_and_stays(project, capsys):
    folder = project / "checkpoints"
    assert main("pin", folder / "checkpoint_2") == 0
    main("list", project)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if "pinned" in line] == [
        "checkpoint_2"
    ]
    with CheckpointFolder(folder, keep=1).save(11) as stage:
        stage.write("model.safetensors", {"weight": torch.zeros(1)})
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint_11", "checkpoint_2"]
    assert main("unpin", folder / "checkpoint_2") == 0
    assert not (folder / "checkpoint_2" / "pinned").exists()
    with pytest.raises(CheckpointError, match="Name the folder of one checkpoint"):
        main("pin", project)


def test_a_checkpoint_that_cannot_be_written_to_cannot_be_pinned(project):
    (project / "checkpoints" / "checkpoint_2" / "pinned").mkdir()
    with pytest.raises(CheckpointError, match="the file that keeps a checkpoint, cannot be changed: "):
        main("unpin", project / "checkpoints" / "checkpoint_2")


NAN, INF = math.nan, math.inf
VALUES = [
    (
        torch.tensor([1, complex(0, NAN)]),
        torch.tensor([2, complex(0, NAN)]),
        "1 of 2 values differ, by at most 1",
    ),
    (torch.tensor([1j, 1j]).to(torch.complex32), torch.tensor([1j, 2j]).to(torch.complex32), "by at most 1"),
    (torch.eye(2).to_sparse(), 3 * torch.eye(2).to_sparse(), "2 of 4 values differ, by at most 2"),
    (torch.tensor([INF, 1.0]), torch.tensor([-INF, 1.0]), "1 of 2 values differ, by at most inf"),
    (torch.tensor([NAN, NAN]), torch.tensor([NAN, 1.0]), "1 of 2 values differ, by at most inf"),
    (torch.tensor([1.0, 2.0]).to(torch.float8_e5m2), torch.ones(2).to(torch.float8_e5m2), "by at most 1"),
    (torch.zeros(2, dtype=torch.uint8), torch.ones(2, dtype=torch.uint8), "2 of 2 values differ"),
    (np.array([1, 2]), np.array([1, 3]), r"array\(\[1, 2\]\) -> array\(\[1, 3\]\)"),
    (("MT", np.array([1, 2])), ("MT", np.array([1, 3])), "->"),
    ([NAN, 1.0], [NAN, 2.0], r"\[nan, 1.0\] -> \[nan, 2.0\]"),
    (NAN, 1.0, "nan -> 1.0"),
]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks", "ignore:ComplexHalf support")
@pytest.mark.parametrize(("old", "new", "difference"), VALUES)
def test_values_of_any_kind_are_compared(fresh_state, tmp_path, capsys, old, new, difference):
    PartialState(cpu=True)
    folder = CheckpointFolder(tmp_path)
    for step, value in enumerate((old, new)):
        with folder.save(step) as stage:
            stage.write("state.bin", {"a": value})
    assert main("diff", tmp_path / "checkpoint_0", tmp_path / "checkpoint_0") == 0
    assert not capsys.readouterr().out
    assert main("diff", tmp_path / "checkpoint_0", tmp_path / "checkpoint_1") == 1
    assert re.search(difference, capsys.readouterr().out)


def test_folders_without_checkpoints_are_not_equal(project, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"There is no checkpoint in `.*empty`"):
        main("diff", tmp_path / "empty", tmp_path / "empty")
