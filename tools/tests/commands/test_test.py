import os
import shutil
import subprocess

import pytest

from tools.commands.test import environ_of_suite, in_parallel, options_in_ci, path_without_engines


@pytest.mark.parametrize(
    ("value", "options"),
    [
        (None, []),
        ("", []),
        ("false", []),
        ("true", ["--no-unexpected-skips"]),
        ("1", ["--no-unexpected-skips"]),
    ],
)
def test_ci_accepts_no_unexpected_skips(monkeypatch, value, options):
    monkeypatch.delenv("CI", raising=False)
    if value is not None:
        monkeypatch.setenv("CI", value)
    assert options_in_ci() == options


@pytest.mark.parametrize(("num_cores", "workers"), [(1, None), (2, "2"), (64, "4")])
def test_the_whole_suite_runs_in_as_many_processes_as_there_are_cores_up_to_four(num_cores, workers):
    options = in_parallel(num_cores)
    in_order = ["--dist", "loadfile", "--no-loadscope-reorder"]
    assert options == ([] if workers is None else ["-n", workers, *in_order])


@pytest.fixture
def programs(tmp_path):
    """Return a `PATH` of two folders: one with programs of engines among others, one without."""
    for name in (
        "first/mpirun",
        "first/mpirun.openmpi",
        "first/ssh",
        "first/ssh-add",
        "first/tool",
        "second/other",
    ):
        program = tmp_path / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\necho it is here\n")
        program.chmod(0o755)
    return os.pathsep.join([str(tmp_path / "first"), str(tmp_path / "missing"), str(tmp_path / "second")])


def test_no_program_of_an_engine_is_found_and_every_other_is(programs, tmp_path):
    (tmp_path / "links").mkdir()
    path = path_without_engines(programs, tmp_path / "links")
    assert [shutil.which(name, path=path) for name in ("mpirun", "mpirun.openmpi", "ssh")] == [None] * 3
    assert shutil.which("other", path=path) == str(tmp_path / "second/other")
    for name in ("tool", "ssh-add"):
        assert subprocess.check_output([shutil.which(name, path=path)], text=True) == "it is here\n"


@pytest.mark.parametrize(("ci", "are_hidden"), [("true", True), ("", False)])
def test_the_plain_suite_does_without_programs_of_engines_in_ci(
    monkeypatch, tmp_path, programs, ci, are_hidden
):
    monkeypatch.setenv("CI", ci)
    environ = environ_of_suite({"PATH": programs, "A": "1"}, tmp_path)
    assert (shutil.which("ssh", path=environ["PATH"]) is None) == are_hidden
    assert environ["A"] == "1"
