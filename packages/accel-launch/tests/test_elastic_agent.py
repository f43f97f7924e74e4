from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

import pytest

from accel_launch.elastic_agent import TailedLogs, address_towards, known_to_this_torch, report_on
from accel_launch.reports.telling import describe

NOW = int(time.time())
TERMINATED, CRASHED = -signal.SIGTERM, -signal.SIGSEGV


@dataclass
class FakeFailure:
    exitcode: int
    timestamp: int
    local_rank: int = 0


@dataclass
class FakeDestinations:
    stdouts: dict[int, str]
    stderrs: dict[int, str]


@dataclass
class FakeLogsSpecs:
    """torch's part: files for the ranks in ``to_files``."""

    to_files: tuple[int, ...] = ()
    root_log_dir: str = "/logs"

    def reify(self, envs):
        files = {rank: f"/logs/{rank}" if rank in self.to_files else "" for rank in envs}
        return FakeDestinations(dict(files), dict(files))


@pytest.mark.parametrize(
    ("failures", "first", "exit_code"),
    [
        ({1: FakeFailure(3, NOW)}, 1, 3),
        ({0: FakeFailure(TERMINATED, NOW), 1: FakeFailure(CRASHED, NOW)}, 1, 139),
        ({0: FakeFailure(1, NOW + 2), 2: FakeFailure(3, NOW + 1), 3: FakeFailure(-4, NOW + 2)}, 2, 3),
    ],
)
def test_the_first_failure_is_named_before_those_that_follow_from_it(failures, first, exit_code):
    report = report_on(failures, num_ranks=4)
    assert (report.first.rank, report.exit_code) == (first, exit_code)


def test_one_failure_that_the_agent_tells_of_is_no_run_of_one_rank():
    assert describe(report_on({1: FakeFailure(3, NOW)}, num_ranks=2)).startswith("Rank 1 on ")
    assert describe(report_on({0: FakeFailure(3, NOW)}, num_ranks=1)) == "The script ended with exit code 3."


def test_the_ranks_of_all_machines_are_counted():
    with TailedLogs(FakeLogsSpecs()) as logs:
        logs.reify({0: {"WORLD_SIZE": "8"}})
    assert logs.num_ranks == 8


def test_without_a_failure_the_run_has_succeeded():
    assert report_on({}, num_ranks=2).outcome == "succeeded"


def test_what_ranks_write_is_passed_on_and_its_end_remembered(capfd):
    with TailedLogs(FakeLogsSpecs(to_files=(1,))) as logs:
        destinations = logs.reify({0: {"WORLD_SIZE": "2"}, 1: {"WORLD_SIZE": "2"}})
        assert (destinations.stdouts[1], destinations.stderrs[1]) == ("/logs/1", "/logs/1")
        with open(destinations.stderrs[0], "w") as stderr:
            stderr.write("one\ntwo\n")
    assert logs.last_lines(0) == ("one", "two")
    assert logs.last_lines(1) == ()
    assert capfd.readouterr().err == "one\ntwo\n"


def test_a_new_attempt_forgets_the_lines_of_the_old_one_and_leaks_nothing():
    before = len(os.listdir("/dev/fd"))
    with TailedLogs(FakeLogsSpecs()) as logs:
        for attempt in range(3):
            with open(logs.reify({0: {"WORLD_SIZE": "1"}}).stdouts[0], "w") as stdout:
                stdout.write(f"attempt {attempt}\n")
    assert logs.last_lines(0) == ("attempt 2",)
    assert len(os.listdir("/dev/fd")) == before


@pytest.mark.parametrize(
    ("endpoint", "address"), [("127.0.0.1:29500", "127.0.0.1"), ("nowhere", None), ("", None)]
)
def test_the_own_address_is_the_one_that_leads_to_the_others(endpoint, address):
    assert address_towards(endpoint) == address


@dataclass
class OldLaunchConfig:
    """torch 2.8's: its agent waits 30 s for the ranks to end, whatever one asks for."""


def test_an_old_agent_is_not_given_the_time_that_it_waits_anyway(monkeypatch):
    monkeypatch.setattr("torch.distributed.launcher.api.LaunchConfig", OldLaunchConfig)
    assert known_to_this_torch(["--nnodes=1", "--shutdown-timeout=30"]) == ["--nnodes=1"]


def test_a_grace_period_that_an_old_agent_cannot_keep_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("torch.distributed.launcher.api.LaunchConfig", OldLaunchConfig)
    assert known_to_this_torch(["--nnodes=1", "--shutdown-timeout=5"]) is None
    told = capsys.readouterr().err
    assert "`--grace_period_s` is 5, but the elastic agent of torch" in told
    assert "always waits 30 s. Leave the flag out, or use a newer torch." in told
