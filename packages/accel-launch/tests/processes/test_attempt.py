"""Processes that start again after a failure, and the files that keep what they write."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from accel_launch.plan import LogSettings, ProcessPlan
from accel_launch.processes.attempt import Restarts
from accel_launch.processes.output import LogFile, log_folder, streams_to_tee
from accel_launch.processes.supervision import run_processes
from accel_state.errors import LaunchError

COUNT = "import os; count = int(os.environ.get('TORCHELASTIC_RESTART_COUNT', '0'))\n"


def run(*codes: str, restarts: Restarts, **options):
    plans = [
        ProcessPlan((sys.executable, "-c", code), Path.cwd(), rank=rank) for rank, code in enumerate(codes)
    ]
    return run_processes(plans, host_environ={}, restarts=restarts, **options)


def codes_of(ending) -> list[int]:
    return [child.return_code for child in ending.children]


def test_all_start_again_until_none_fails(capfd):
    code = COUNT + "print('attempt', count)\nraise SystemExit(3 if count < 2 else 0)"
    assert codes_of(run(code, restarts=Restarts(maximum=3))) == [0]
    told = capfd.readouterr()
    assert told.out == "attempt 0\nattempt 1\nattempt 2\n"
    assert told.err.splitlines() == [
        f"Rank 0 ended with exit code 3. All ranks start again ({number} of 3)." for number in (1, 2)
    ]


def test_the_last_failure_counts_once_no_restart_is_left():
    ending = run(COUNT + "raise SystemExit(3 + count)", restarts=Restarts(maximum=1))
    assert codes_of(ending) == [4]


def test_nothing_of_an_attempt_is_left_when_the_next_begins(tmp_path):
    """Not even what a rank has started in a separate session, and which ignores all signals."""
    stubborn = "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]; time.sleep(60)"
    first = (
        COUNT + "import subprocess, sys\n"
        f"if count == 0:\n    child = subprocess.Popen([sys.executable, '-c', {stubborn!r}], start_new_session=True)\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n    raise SystemExit(1)\n"
        f"print(open('/proc/' + open({str(tmp_path / 'pid')!r}).read() + '/stat'))"
    )
    ending = run(first, restarts=Restarts(maximum=1), grace_period_s=0.5)
    if sys.platform == "linux":
        assert codes_of(ending) == [1]  # there is no such process
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_a_signal_ends_the_restarts_too():
    code = COUNT + "import os, signal, time; os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)"
    ending = run(code, code, restarts=Restarts(maximum=5), grace_period_s=0.2)
    assert ending.interrupted_by == signal.SIGTERM


@pytest.mark.parametrize(
    ("tee", "streams"), [("0", [0, 0]), ("3", [3, 3]), ("0:3,1:1", [3, 1]), ("1:2", [0, 2])]
)
def test_each_rank_may_keep_other_streams(tee, streams):
    assert [streams_to_tee(tee, rank) for rank in range(2)] == streams


def test_files_keep_what_ranks_write_in_each_attempt(tmp_path, capfd):
    settings = LogSettings("0:3,1:2", tmp_path / "logs", "me")
    write = COUNT + (
        "import sys\nprint('out', flush=True)\nprint('err', file=sys.stderr, flush=True)\n"
        "file = os.environ['TORCHELASTIC_ERROR_FILE']\nopen(file, 'w').close()\n"
    )
    wait = "while not os.path.exists(file.replace('/1/', '/0/')): pass\nraise SystemExit(count == 0)"
    with log_folder(settings) as logs:
        ending = run(write, write + wait, restarts=Restarts(maximum=1, logs=logs))
    assert codes_of(ending) == [0, 0]
    (folder,) = (tmp_path / "logs").iterdir()
    for attempt in (0, 1):
        first, second = (folder / f"attempt_{attempt}" / rank for rank in "01")
        assert sorted(file.name for file in first.iterdir()) == ["error.json", "stderr.log", "stdout.log"]
        assert (first / "stdout.log").read_text() == "out\n"
        assert (first / "stderr.log").read_text() == "err\n"
        assert sorted({*os.listdir(second)} - {"error.json"}) == ["stderr.log"]
    told = capfd.readouterr()
    assert sorted({*told.out.splitlines()}) == ["[me0]:out", "out"]
    assert {"[me0]:err", "[me1]:err"} <= set(told.err.splitlines())
    assert ending.children[0].last_lines == ("out", "err")


def test_an_unrequested_folder_is_reported_and_one_for_errors_only_is_removed(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with log_folder(LogSettings("0")) as logs:
        assert logs.path.is_dir()
    assert not logs.path.exists()
    with log_folder(LogSettings("3")) as logs:
        pass
    assert logs.path.is_dir()
    assert capsys.readouterr().err == f"The output of the ranks is kept in {logs.path}\n"
    with log_folder(None) as logs:
        assert logs is None


def test_a_place_where_no_folder_can_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(
            LaunchError, match="`--log_dir` is `.*/file`, where no folder can be made: File exists"
        ),
        log_folder(LogSettings(folder=tmp_path / "file")),
    ):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_costs_the_copy_and_not_the_run(capfd):
    file = LogFile(Path("/dev/full"))
    file.write(b"one")
    file.write(b"two")
    assert (
        capfd.readouterr().err
        == "warning: `/dev/full` cannot be written any more: No space left on device.\n"
    )
