"""Runs Accelerate's own tests on accel: ``python integration-tests/peer_suite.py [FILE.py …]``.

The tests come from Accelerate's source distribution on PyPI and are run as they are, once with Accelerate and once with
accel, which stands in for it. What passes with Accelerate on this machine must pass with accel, but for the tests in
`peer_suite.toml`, which gives the reason for each. It runs in an environment without Accelerate, such as
`.venvs/libraries` of `python tools/dev.py test --engines libraries`: Accelerate is put into a separate folder.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HERE = Path(__file__).parent

REASONS = HERE / "peer_suite.toml"
BUILD = HERE.parent / "build"
RELEASE = "1.15.0"
SHA256 = "5654f8c5eaa0d4fa68b33e287a97765da6849bf6d51dcac874e73fbbddfb6134"
ALONE = ("test_accelerator.py::AcceleratorTester::test_free_memory_dereferences_prepared_components",)
"""They measure the memory of the whole machine, so they run once more when the other side does not run."""
WITHOUT_SUBJECT = ("test_examples.py",)
"""They start the examples of Accelerate's repository, which the archive lacks."""
NEEDED = ("parameterized", "torchdata")
"""What the tests import and the environment of libraries lacks."""
TEST_TIMEOUT_S = 300

ASK = """
import sys, accelerate
name = accelerate.Accelerator.__module__.partition('.')[0]
print(name, accelerate.__version__, sys.modules[name].__file__)
"""
"""Tells which package `accelerate` is, and where it is."""

Side = Literal["accelerate", "accel"]
Outcomes = Mapping[str, str]
"""How each test ended: ``passed``, ``skipped``, or the text of its failure."""


def _pip(*words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *map(str, words)], check=True)


def _install(folder: Path, *requirements: str) -> Path:
    """Install packages into a folder, without those that they need, unless it is there."""
    if not folder.exists():
        _pip("install", "--no-deps", "--target", folder, *requirements)
    return folder


def sources() -> Path:
    """Return the folder of Accelerate's source distribution; download, check and unpack it if it is not there."""
    folder, name = BUILD / "peer_sources", f"accelerate-{RELEASE}"
    if (folder / name).is_dir():
        return folder / name
    archive = folder / f"{name}.tar.gz"
    if not archive.is_file():
        options = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", folder)
        _pip("download", *options, f"accelerate=={RELEASE}")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != SHA256:
        raise SystemExit(f"`{archive}` is not the archive of Accelerate {RELEASE}: its SHA-256 is {digest}.")
    with tempfile.TemporaryDirectory(dir=folder) as staging, tarfile.open(archive) as opened:
        opened.extractall(staging, filter="data")
        (Path(staging) / name).rename(folder / name)
    return folder / name


@dataclass(frozen=True)
class Suite:
    """Accelerate's tests in a folder, and how they are run.

    Attributes:
        folder: Has `tests` and `test_utils`; results are written here too.
        extras: A folder of the packages that the tests need.
        peer: A folder of packages with Accelerate itself.
    """

    folder: Path
    extras: Path
    peer: Path

    @classmethod
    def prepare(cls, folder: Path) -> Suite:
        """Return the suite, copied into a folder, which is made; downloads what is not there."""
        for source in ("tests", "src/accelerate/test_utils"):
            shutil.copytree(sources() / source, folder / Path(source).name, dirs_exist_ok=True)
        for side in ("accelerate", "accel"):
            _write_command(folder / f"bin-{side}" / "accelerate")
        return cls(
            folder,
            _install(BUILD / "peer-suite", *NEEDED),
            _install(BUILD / "peer", f"accelerate=={RELEASE}"),
        )

    def show_packages(self) -> None:
        """Print which package `accelerate` is on each side; raise `SystemExit` if it is not the one of that side."""
        for side in ("accelerate", "accel"):
            done = subprocess.run(
                [sys.executable, "-c", ASK],
                env=self._environ(side),
                cwd=self.folder,
                capture_output=True,
                text=True,
                check=False,
            )
            print(f"{side}: `accelerate` is {done.stdout.strip()}")
            if done.stdout.split()[:1] != [side]:
                raise SystemExit(
                    f"`accelerate` is not {side}, on which the tests are to run. Start this with the Python of an "
                    f"environment without Accelerate, such as `.venvs/libraries`. {done.stderr[-1000:]}"
                )

    @property
    def files(self) -> list[str]:
        """The names of the test files."""
        found = (path.name for path in (self.folder / "tests").glob("test_*.py"))
        return sorted(name for name in found if name not in WITHOUT_SUBJECT)

    def run(self, side: Side, names: Sequence[str]) -> Outcomes:
        """Run files, or tests of files, in one session, and return how each test ended."""
        report = self.folder / f"{side}.xml"
        report.unlink(missing_ok=True)
        wanted = [f"{self.folder}/tests/{name}" for name in names]
        command = [
            *(sys.executable, "-m", "pytest", *wanted, f"--junitxml={report}", "-o", "junit_family=xunit1"),
            *("-p", "no:randomly", "-p", "no:cacheprovider", "-o", "addopts=", "-c", os.devnull, "-q"),
            *(f"--rootdir={self.folder / 'tests'}", f"--timeout={TEST_TIMEOUT_S}"),
            f"--confcutdir={self.folder / 'tests'}",  # in a folder of the checkout, its own conftest would apply
        ]
        with (self.folder / f"{side}.log").open("w") as log:
            subprocess.run(
                command,
                env=self._environ(side),
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
            )
        return _read_report(report) if report.exists() else {f"{name}::": "no report" for name in names}

    def _environ(self, side: Side) -> dict[str, str]:
        sources = (HERE.parent / "packages").glob("*/src")  # of this checkout, whatever is installed
        first = (HERE / "peer_suite_start", self.folder, *sources) if side == "accel" else (self.peer,)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
        return {
            **kept,
            "PATH": os.pathsep.join([str(self.folder / f"bin-{side}"), kept["PATH"]]),
            "PYTHONPATH": os.pathsep.join(map(str, (*first, self.extras))),
            "HF_HOME": str(self.folder / "hf"),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "ACCEL_FP16_ON_CPU": "true",  # the scripts train in fp16 on any device
        }


def _write_command(path: Path) -> None:
    """Write the command `accelerate` of this interpreter."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m accelerate.commands.accelerate_cli "$@"\n')
    path.chmod(0o755)


def _read_report(report: Path) -> Outcomes:
    """Return how each test of a JUnit report ended; a file that cannot be imported is one test without a name."""
    outcomes: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):
        module, *group = (case.get("classname") or case.get("name") or "").split(".")
        name = f"{module}.py::{'::'.join([*group, case.get('name') or '']) if case.get('classname') else ''}"
        outcomes.setdefault(name, "passed")
        for child in case:
            if child.tag == "skipped":
                outcomes[name] = "skipped"
            elif child.tag in ("failure", "error"):
                outcomes[name] = (child.get("message") or child.tag).strip()
    return outcomes


def run_both(suite: Suite, files: Sequence[str]) -> tuple[Outcomes, Outcomes]:
    """Run files on both sides at once, and return how each test ended with Accelerate and with accel."""
    suite.show_packages()
    sides: tuple[Side, Side] = ("accelerate", "accel")
    with ThreadPoolExecutor(2) as pool:
        there, here = pool.map(lambda side: dict(suite.run(side, files)), sides)
    for test in ALONE:
        if test.partition("::")[0] in files:
            for side, outcomes in zip(sides, (there, here), strict=True):
                outcomes.update(suite.run(side, [test]))
    return there, here


@dataclass(frozen=True)
class Comparison:
    """What passes with Accelerate, next to what passes with accel.

    Attributes:
        passed_there: The tests that pass with Accelerate.
        differences: How those of them ended that do not pass with accel, by test.
        reasons: Why tests do not pass with accel, by test; without parameters for all of them.
    """

    passed_there: Sequence[str]
    differences: Mapping[str, str]
    reasons: Mapping[str, str]

    def reason(self, test: str) -> str | None:
        """Return why a test does not pass with accel, as far as that is known."""
        return self.reasons.get(test, self.reasons.get(_without_parameters(test)))

    @property
    def without_reason(self) -> list[str]:
        """The differences that have none."""
        return [test for test in self.differences if self.reason(test) is None]

    @property
    def reasons_left_over(self) -> list[str]:
        """The tests that have a reason and pass, of those that were run."""
        needed = {name for test in self.differences for name in (test, _without_parameters(test))}
        passed = {name for test in self.passed_there for name in (test, _without_parameters(test))}
        return [name for name in self.reasons if name in passed and name not in needed]

    def summary(self, file: str = "") -> str:
        """Return the counts of all tests, or of those of a file, in a few words."""
        there = [test for test in self.passed_there if test.startswith(file)]
        return f"{sum(test not in self.differences for test in there)} of {len(there)}"

    def table(self) -> str:
        """Return a line for each file, then one for each difference."""
        files = sorted({test.partition("::")[0] for test in self.passed_there})
        lines = [f"{file:58} {self.summary(f'{file}::')}" for file in files]
        lines += ["", self.summary(), ""]
        for test, ending in self.differences.items():
            lines.append(f"{test}: {self.reason(test) or f'NO REASON: {ending[:300]}'}")
        return "\n".join(lines)


def _without_parameters(test: str) -> str:
    return test.partition("[")[0]


def compare(there: Outcomes, here: Outcomes, reasons: Mapping[str, str]) -> Comparison:
    """Compare how tests ended on both sides."""
    passed = [test for test, ending in there.items() if ending == "passed"]
    ended = {
        test: here.get(test) or here.get(f"{test.partition('::')[0]}::", "was not run") for test in passed
    }
    return Comparison(passed, {test: ending for test, ending in ended.items() if ending != "passed"}, reasons)


def read_reasons() -> dict[str, str]:
    """Return why tests of Accelerate do not pass here, by test."""
    table = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    return {f"{file}::{test}": reason for file, tests in table.items() for test, reason in tests.items()}


def main() -> int:
    """Run and compare; return 1 if a difference has no reason, or a reason no difference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="test files to run; all of them by default")
    parser.add_argument("--folder", type=Path, default=BUILD / "peer-suite-run")
    options = parser.parse_args()
    suite = Suite.prepare(options.folder)
    found = compare(*run_both(suite, options.files or suite.files), read_reasons())
    print(found.table())
    for test in found.reasons_left_over:
        print(f"{test} passes: remove its reason from {REASONS.name}.")
    return 1 if found.without_reason or found.reasons_left_over else 0


if __name__ == "__main__":
    sys.exit(main())
