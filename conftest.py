"""Which tests run here, in which order, and which of them may be skipped.

A test marked ``engine("slurm")`` needs an engine, a service or a network that an ordinary environment lacks. It runs
only if that engine is asked for, with ``--engine slurm``. Then no other test runs, and none may be skipped.
With ``--no-unexpected-skips``, as in CI, tests are skipped for the reasons in `EXPECTED_SKIPS` only.
Accelerators are hidden before torch is imported, so that tests find the same CPUs everywhere. A test that is marked
``gpu`` or takes the fixture ``device`` runs on a GPU in a second pass, with ``ACCEL_TEST_DEVICE=cuda`` and ``-m gpu``.
Files with slow tests come first, so that in a run in several processes none is left with a long file at the end.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tools.harness.device import device_type, hide_accelerators, is_device_pass

hide_accelerators()
pytest_plugins = ("tools.harness.plugin",)

NEEDS_ACCELERATOR = "needs an accelerator (CUDA or ROCm)"
EXPECTED_SKIPS = {
    "needs an accelerator": "CI has none",
    "needs a TPU": "CI has none",
    "needs macOS": "CI runs Linux",
    "needs the right to mount": "containers may not have it; CI has",
    "needs a Python older than 3.11": "a machine may have none; a pretended one is tested everywhere",
}
"""How the reason for a skip may begin, and why that leaves no hole in what CI tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("accel")
    group.addoption(
        "--engine",
        action="append",
        default=[],
        dest="engines",
        metavar="NAME",
        help="run the tests marked engine(NAME), and only those; may be given several times",
    )
    group.addoption(
        "--no-unexpected-skips",
        action="store_true",
        help="fail if a test is skipped for a reason not listed in conftest.py; always so with --engine",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Without a GPU, what fp16 does is tested on the CPU, where users are refused it.
    os.environ["ACCEL_FP16_ON_CPU"] = "true"
    config.pluginmanager.register(Selection(config.option.engines))
    if config.option.no_unexpected_skips or config.option.engines:
        config.pluginmanager.register(UnexpectedSkips())


class Selection:
    """Leaves out the tests of engines that were not asked for, and those that need an accelerator where none is."""

    def __init__(self, engines: list[str]) -> None:
        self._engines = set(engines)
        self._left_out: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)  # before `-m` chooses by the marks that are added here
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        known = {name for item in items for name in engines_of(item)}
        if unknown := self._engines - known:
            names = ", ".join(f"`{name}`" for name in sorted(unknown))
            raise pytest.UsageError(
                f"No test here is marked with the engine {names}. Marked are: {', '.join(sorted(known)) or 'none'}."
            )
        chosen, left_out = [], []
        for item in items:
            engines = engines_of(item)
            runs = bool(engines & self._engines) if self._engines else not engines
            (chosen if runs else left_out).append(item)
        if not self._engines:
            self._left_out.update(name for item in left_out for name in engines_of(item))
        if left_out:
            config.hook.pytest_deselected(items=left_out)
        items[:] = slow_files_first(chosen)
        mark_tests_of_the_device(items)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._left_out:
            counts = ", ".join(f"{name} {count}" for name, count in sorted(self._left_out.items()))
            terminalreporter.write_line(f"Tests of engines, run with --engine NAME: {counts}")
        if failures := os.environ.get("EARLIER_FAILURES"):  # from .ci/run
            terminalreporter.section("failed before these tests", red=True)
            terminalreporter.write_line(failures)


class UnexpectedSkips:
    """Fails the run at its end if a test was skipped for a reason that `EXPECTED_SKIPS` does not list."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not hasattr(report, "wasxfail"):  # what is expected to fail is reported as skipped, too
            self._note(report)

    def _note(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            if not reason.startswith(tuple(EXPECTED_SKIPS)):
                self._found.append(f"{report.nodeid}: {reason}")

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._found and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._found:
            terminalreporter.section("unexpected skips", red=True)
            for line in self._found:
                terminalreporter.write_line(line)
            terminalreporter.write_line(
                "Install what is missing, mark the test with its engine, or list the reason in conftest.py."
            )


def engines_of(item: pytest.Item) -> set[str]:
    """Return the engines of which the test needs at least one; its own mark counts, and not also its file's."""
    marker = item.get_closest_marker("engine")
    engines = set(map(str, marker.args)) if marker else set()
    return engines - {"long"} if is_device_pass() else engines  # on a GPU the whole matrix runs


def slow_files_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests with those files first that have a slow test, or jobs that several tests share.

    Otherwise the order stays as it is.
    """
    slow = {
        item.path
        for item in items
        if item.get_closest_marker("slow") or "outcome" in getattr(item, "fixturenames", ())
    }
    return sorted(items, key=lambda item: item.path not in slow)


def mark_tests_of_the_device(items: list[pytest.Item]) -> None:
    """Mark tests with the fixture ``device`` as ``gpu`` in the second pass; on the CPU, skip others with that mark."""
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        has_device = "device" in getattr(item, "fixturenames", ()) and "device" not in params
        if has_device and is_device_pass():
            item.add_marker("gpu")
        if device_type() == "cpu" and not has_device and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=NEEDS_ACCELERATOR))
