"""The program that starts ranks through `torch_xla`, with a stand-in for that package that spawns as it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accel_launch.xla_spawn import TrainingFunction
from accel_state.errors import ConfigError

PACKAGE = """\
import multiprocessing, os

def launch(fn, args=(), start_method="spawn", debug_single_process=False):
    if debug_single_process:
        fn(0, *args)
        return
    context = multiprocessing.get_context(start_method)
    ranks = [context.Process(target=fn, args=(index, *args)) for index in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    if any(rank.exitcode for rank in ranks):
        raise RuntimeError("a rank failed")
"""
RUNTIME = "def world_size():\n    return 2\n"
SCRIPT = """\
import os, sys
from pathlib import Path
import beside

def main():
    assert sys.argv == ["code/train.py", "--lr", "1"], sys.argv
    assert beside.VALUE == 3 and __name__ == "train"
    Path(f"ran-{os.getpid()}").touch()

def other():
    Path("other").touch()

if __name__ == "__main__":
    raise SystemExit("not to be run")
"""


@pytest.fixture
def place(tmp_path) -> Path:
    package = tmp_path / "packages" / "torch_xla"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE)
    (package / "runtime.py").write_text(RUNTIME)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    (tmp_path / "code" / "beside.py").write_text("VALUE = 3\n")
    (tmp_path / "multiprocessing.py").write_text("raise SystemExit('a file of the person was imported')\n")
    return tmp_path


def run(place: Path, *arguments: str, with_xla: bool = True) -> subprocess.CompletedProcess[str]:
    path = [str(place / "packages")] if with_xla else []
    path += filter(None, [os.environ.get("PYTHONPATH")])
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(path)}
    return subprocess.run(
        [sys.executable, "-P", "-m", "accel_launch.xla_spawn", *arguments],
        cwd=place,
        env=environ,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_each_rank_calls_the_function_of_the_script(place):
    finished = run(place, "--function=main", "--", "code/train.py", "--lr", "1")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert len(list(place.glob("ran-*"))) == 2


def test_one_process_is_this_one(place):
    finished = run(place, "--function=other", "--num-processes=1", "--", "code/train.py")
    assert finished.returncode == 0
    assert "`--num_processes` is 1, but the TPU runtime started 2" in finished.stderr
    assert (place / "other").exists()


def test_a_number_that_the_runtime_does_not_start_is_reported_once(place):
    finished = run(place, "--function=other", "--num-processes=8", "--", "code/train.py")
    assert (
        finished.stderr.count("`--num_processes` is 8, but the TPU runtime started 2: one for each device")
        == 1
    )


def test_a_function_that_is_not_there_is_named(place):
    finished = run(place, "--function=train", "--num-processes=2", "--", "code/train.py", "--lr", "1")
    assert finished.returncode == 1
    assert (
        "`--main_training_function` is `train`, but `code/train.py` has no function of that name"
        in finished.stderr
    )


def test_without_the_package_a_hint_is_given(place):
    finished = run(place, "--function=main", "--", "code/train.py", with_xla=False)
    assert finished.returncode == 1
    assert finished.stderr.startswith("error: `--tpu` needs the package `torch_xla`: ")
    assert len(finished.stderr.splitlines()) == 1


def test_a_module_is_found_from_the_directory(place, monkeypatch):
    (place / "pkg_of_this_test").mkdir()
    (place / "pkg_of_this_test" / "train.py").write_text("def main():\n    return 5\n\nnumber = 3\n")
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [])
    name = "pkg_of_this_test.train"
    assert TrainingFunction(name, "main", ["a"], is_module=True, num_asked=None).load()() == 5
    assert sys.argv == [name, "a"]
    with pytest.raises(ConfigError, match="`--main_training_function` is `number`"):
        TrainingFunction(name, "number", [], is_module=True, num_asked=None).load()
