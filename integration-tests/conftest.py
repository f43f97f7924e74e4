"""Makes the scripts and drivers next to the tests importable; two machines, a SLURM cluster; and the table of clients.

A test marked ``client("peft", "what it runs")`` runs a program that others wrote for Accelerate. If it passes, it is
a row of ``docs/reference/clients.md``; ``record_property("ran", …)`` reports what was run with numbers of this run.
"""

import importlib.metadata
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import slurm_cluster
import two_machines

from tools.checks.client_table import Row, record
from tools.workspace import dependency_group


def pytest_configure(config):
    if not hasattr(config, "workerinput"):  # with pytest-xdist, the process that hears of all tests
        config.pluginmanager.register(Clients())


def pytest_runtest_setup(item):
    marker = item.get_closest_marker("client")
    if marker is not None:
        item.user_properties.append(("client", (*marker.args, marker.kwargs.get("differs"))))


class Clients:
    """Records what passing tests of clients showed, and fails the run if the page says something else."""

    def __init__(self):
        self._passed = {}
        self._failed = set()
        self._missing = []

    def pytest_runtest_logreport(self, report):
        properties = dict(report.user_properties)
        if "client" not in properties:
            return
        test = report.nodeid.partition("[")[0]
        if report.failed:
            self._failed.add(test)
        elif report.when == "call" and report.passed:
            self._passed.setdefault(test, []).append(properties)

    def pytest_sessionfinish(self, session, exitstatus):
        rows = [row_of(test, runs) for test, runs in self._passed.items() if test not in self._failed]
        self._missing = record(rows) if rows else []
        if self._missing and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if self._missing:
            terminalreporter.section("the table of clients is old", red=True)
            for line in self._missing:
                terminalreporter.write_line(line)


def row_of(test, runs):
    """Return the row of a test from the properties of its runs, one for each of its parameters."""
    distribution, ran, differs = runs[0]["client"]
    ran = ", ".join(sorted({run.get("ran", ran) for run in runs}))
    return Row(f"{distribution} {release_of(distribution)}", ran, differs or "equal", test)


def release_of(distribution):
    """Return the release that is installed, or the pin of what is in a folder apart: Accelerate and small clients."""
    pins = [*dependency_group("bench"), *dependency_group("clients")]
    pinned = [line.partition("==")[2] for line in pins if line.startswith(f"{distribution}==")]
    return pinned[0] if pinned else importlib.metadata.version(distribution)


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """Two machines with an sshd each, where this one lets us make them."""
    reason = two_machines.why_not()
    if reason is not None:
        pytest.skip(reason)
    with two_machines.two_machines(tmp_path_factory.mktemp("machines")) as made:
        yield made


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """A SLURM cluster of two nodes, where this machine has SLURM and lets us make one."""
    reason = slurm_cluster.why_not()
    if reason is not None:
        pytest.skip(reason)
    with slurm_cluster.cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made
