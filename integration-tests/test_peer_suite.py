"""Accelerate's own tests pass on accel, but for those that `peer_suite.toml` gives a reason for.

They come from its source distribution on PyPI and are run as they are, once with Accelerate and once with accel, which
stands in for it. What passes with Accelerate on this machine must pass with accel.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tools.engines.preparing import PEER_FOLDER
from tools.workspace import ROOT

HERE = Path(__file__).parent
CLIENTS = ROOT / "docs" / "reference" / "clients.md"
EXTRAS = ROOT / "build" / "peer-suite"
RELEASE = "accelerate-1.15.0"
SHA256 = "5654f8c5eaa0d4fa68b33e287a97765da6849bf6d51dcac874e73fbbddfb6134"
SAMPLE = (
    "test_accelerator.py",
    "test_cli.py",
    "test_cpu.py",
    "test_grad_sync.py",
    "test_hooks.py",
    "test_modeling_utils.py",
    "test_sagemaker.py",
)
"""Each runs in a minute or two; all with ``ACCEL_TEST_REPEATS=2``."""
WITHOUT_SUBJECT = "test_examples.py"
"""Starts the examples of Accelerate's repository, which the archive lacks."""
ALONE = "test_accelerator.py::AcceleratorTester::test_free_memory_dereferences_prepared_components"
"""Measures the memory of the machine, so it runs once more when the other side does not run."""
ASK = "import accelerate; print(accelerate.Accelerator.__module__.partition('.')[0])"


def pip(*words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *map(str, words)], check=True)


def unpack(folder: Path) -> None:
    """Put Accelerate's tests and their utilities into a folder; download what is not there."""
    archive = EXTRAS / f"{RELEASE}.tar.gz"
    if not archive.is_file():
        pip("install", "--no-deps", "--target", EXTRAS, "parameterized", "torchdata")
        options = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", EXTRAS)
        pip("download", *options, RELEASE.replace("-", "=="))
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == SHA256
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    for part in ("tests", "src/accelerate/test_utils"):
        shutil.move(folder / RELEASE / part, folder)
    for side in ("accelerate", "accel"):
        command = folder / f"bin-{side}" / "accelerate"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m accelerate.commands.accelerate_cli "$@"\n')
        command.chmod(0o755)


def run(side: str, folder: Path, *words: str | Path) -> str:
    """Run Python where `accelerate` is Accelerate or accel, and return its output."""
    sources = (ROOT / "packages").glob("*/src")  # of this checkout, whatever is installed
    first = (HERE / "peer_suite_start", folder, *sources) if side == "accel" else (PEER_FOLDER,)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    environ |= {
        "PATH": os.pathsep.join([str(folder / f"bin-{side}"), environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(map(str, (*first, EXTRAS))),
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "ACCEL_FP16_ON_CPU": "true",  # the scripts train in fp16 on any device
    }
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def assert_is(side: str, folder: Path) -> None:
    """Raise if `accelerate` is not the package of that side."""
    found = run(side, folder, "-c", ASK)
    if found.split()[:1] != [side]:
        raise RuntimeError(f"`accelerate` is not {side}, on which the tests are to run: {found[-1000:]}")


def passed(side: str, folder: Path, names: Collection[str]) -> set[str]:
    """Return which tests of these files pass."""
    tests = folder / "tests"
    options = [
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
        "-c",
        os.devnull,
        "--timeout=300",
    ]
    options += [
        f"--rootdir={tests}",
        f"--confcutdir={tests}",
    ]  # in the checkout, its own conftest would apply
    output = run(side, folder, "-m", "pytest", "-q", "-rA", *options, *(tests / name for name in names))
    (folder / f"{side}.log").write_text(output)

    def ended(word: str) -> set[str]:
        lines = re.findall(rf"^{word} (?:\S*/)?(test_\w+\.py::.*)$", output, re.MULTILINE)
        return {line.partition(" - ")[0] for line in lines}

    return ended("PASSED") - ended("ERROR")  # in what comes after the test


def problems(there: Collection[str], here: Collection[str], reasons: Mapping[str, str]) -> list[str]:
    """Return the differences without a reason, and the reasons of tests that pass here."""

    def names(tests: Collection[str]) -> set[str]:
        return {name for test in tests for name in (test, test.partition("[")[0])}

    differences = [test for test in there if test not in here]
    without = [test for test in differences if not names([test]) & reasons.keys()]
    left_over = reasons.keys() & names(there) - names(differences)
    return [*(f"{one} does not pass" for one in without), *(f"{one} has a reason" for one in left_over)]


@pytest.mark.engine("libraries")
@pytest.mark.timeout(900)
def test_accelerates_own_tests_pass(tmp_path: Path) -> None:
    unpack(tmp_path)
    files: Collection[str] = SAMPLE
    if int(os.environ.get("ACCEL_TEST_REPEATS", "1")) > 1:
        files = {path.name for path in (tmp_path / "tests").glob("test_*.py")} - {WITHOUT_SUBJECT}
    sides = ("accelerate", "accel")
    for side in sides:
        assert_is(side, tmp_path)
    with ThreadPoolExecutor(2) as pool:
        there, here = pool.map(lambda side: passed(side, tmp_path, files), sides)
    for side, found in zip(sides, (there, here), strict=True):
        found.discard(ALONE)
        found |= passed(side, tmp_path, [ALONE])
    table = tomllib.loads((HERE / "peer_suite.toml").read_text(encoding="utf-8"))
    reasons = {f"{file}::{test}": reason for file, tests in table.items() for test, reason in tests.items()}
    assert problems(there, here, reasons) == []
    page = CLIENTS.read_text(encoding="utf-8")
    for file in SAMPLE:
        all_of_file = [test for test in there if test.startswith(f"{file}::")]
        assert f"{file}: {len(here.intersection(all_of_file))} of {len(all_of_file)}" in page


def test_a_difference_needs_a_reason_and_a_reason_a_difference() -> None:
    there, here = {"a.py::one", "a.py::two[x]", "a.py::three"}, {"a.py::three", "a.py::four"}
    reasons = {"a.py::two": "By design.", "a.py::three": "It was so once.", "b.py::other": "Not run."}
    assert problems(there, here, reasons) == ["a.py::one does not pass", "a.py::three has a reason"]


def test_nothing_is_compared_where_a_side_would_run_the_other_package(tmp_path: Path) -> None:
    stranger = tmp_path / "accelerate"
    for folder in (stranger, tmp_path / "accelerate-1.0.dist-info", tmp_path / "test_utils"):
        folder.mkdir()
    (stranger / "__init__.py").write_text("__version__ = '1.0'\nclass Accelerator: pass\n")
    (tmp_path / "accelerate-1.0.dist-info" / "METADATA").write_text("Name: accelerate\nVersion: 1.0\n")
    with pytest.raises(RuntimeError, match="`accelerate` is not accel, on which"):
        assert_is("accel", tmp_path)
