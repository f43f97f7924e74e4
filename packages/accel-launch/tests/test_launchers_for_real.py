"""Real processes through the real command."""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from torch.distributed import TCPStore

from accel_launch.launchers.local import free_port

pytestmark = pytest.mark.slow

WRITE = """
import json, os, sys
from pathlib import Path
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
         "OMP_NUM_THREADS", "ACCELERATE_MIXED_PRECISION", "ACCELERATE_USE_CPU")
seen = {name: os.environ.get(name) for name in names} | {"argv": sys.argv[1:]}
Path(sys.argv[0]).with_name(f"rank{os.environ.get('RANK', 'none')}.json").write_text(json.dumps(seen))
"""
# The last rank fails in the attempts it is given, when the other one has printed its number.
TRY = """
import os, sys, time
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print("pid", os.getpid(), flush=True)
has_begun = f"{sys.argv[0]}.{attempt}"
if rank == "0":
    open(has_begun, "w").close()
if rank == "1" and attempt in sys.argv[1:]:
    while not os.path.exists(has_begun):
        time.sleep(0.01)
    raise ValueError(f"attempt {attempt}")
time.sleep(60 if sys.argv[1:] and attempt == sys.argv[-1] else 0)
"""
# The rank of the second machine fails once, when that of the first has begun.
FAIL_ONCE = """
import os, sys, time
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
print("rank", rank, "attempt", attempt, "of", os.environ["WORLD_SIZE"], flush=True)
if attempt == "0":
    if rank == "0":
        open(f"{sys.argv[0]}.begun", "w").close()
        time.sleep(60)
    while not os.path.exists(f"{sys.argv[0]}.begun"):
        time.sleep(0.01)
    raise ValueError("once")
"""
# Each rank waits for two signals of the user's own, tells of each and ends well.
HEAR = """
import os, signal
expected = {signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, expected)
print("pid", os.getpid(), flush=True)
for _ in range(2):
    heard = signal.sigwait(expected)
    print(os.environ["RANK"], "hears", int(heard), flush=True)
"""


# Rank 1 prints an exception that it handles, and ends in a way of its own when it is asked to. Rank 0 fails.
HANDLED = """
import os, signal, sys, time, traceback
if os.environ["RANK"] == "1":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(int(sys.argv[1])))
    try:
        raise TimeoutError("a download that is tried again")
    except TimeoutError:
        traceback.print_exc()
    print("all is well", flush=True)
    open(sys.argv[0] + ".go", "w").close()
    time.sleep(60)
while not os.path.exists(sys.argv[0] + ".go"):
    time.sleep(0.01)
raise ValueError("the cause")
"""


@pytest.fixture
def script(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(text)
        return str(path)

    return write


def start(*arguments: str, env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "accel_launch", "launch", "--cpu", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | env,
        start_new_session=True,
    )


@pytest.mark.parametrize("num_processes", [1, 2])
@pytest.mark.parametrize("is_program", [False, True])
def test_a_line_of_a_rank_arrives_when_it_is_printed(
    script, monkeypatch, no_user_config, num_processes, is_program
):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    path = script("import time\nprint('a line')\ntime.sleep(60)\n")
    command = ["--no_python", sys.executable, path] if is_program else [path]
    with start(f"--num_processes={num_processes}", *command, env=no_user_config) as run:
        try:
            assert [run.stdout.readline() for _ in range(num_processes)] == ["a line\n"] * num_processes
            assert run.poll() is None
        finally:
            run.terminate()


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        stdout, stderr = process.communicate(timeout=180)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, stdout, stderr


def pids_told(process: subprocess.Popen[str], number: int) -> list[int]:
    """Wait for a line from each rank."""
    return [int(process.stdout.readline().split()[1]) for _ in range(number)]


def are_gone(pids: list[int], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while any(is_running(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_one_process_is_started_as_by_hand(tmp_path, script, no_user_config):
    code, _, stderr = finish(
        start("--mixed_precision", "bf16", script(WRITE), "--num_processes", "3", env=no_user_config)
    )
    assert (code, stderr) == (0, "")
    seen = json.loads((tmp_path / "ranknone.json").read_text())
    assert seen["argv"] == ["--num_processes", "3"]
    assert seen["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert seen["WORLD_SIZE"] is None


def test_two_processes_know_their_ranks_and_settings(tmp_path, script, no_user_config):
    arguments = ["--cpu", "--", "-h", "a b"]
    code, _, stderr = finish(
        start(
            "--num_processes",
            "2",
            "--num_cpu_threads_per_process",
            "3",
            script(WRITE),
            *arguments,
            env=no_user_config,
        )
    )
    assert (code, stderr) == (0, "")
    for rank in ("0", "1"):
        seen = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert (seen["RANK"], seen["LOCAL_RANK"], seen["WORLD_SIZE"]) == (rank, rank, "2")
        assert seen["LOCAL_WORLD_SIZE"] == "2"
        assert seen["MASTER_ADDR"]
        assert int(seen["MASTER_PORT"]) > 0
        assert seen["OMP_NUM_THREADS"] == "3"
        assert seen["ACCELERATE_USE_CPU"] == "true"
        assert seen["argv"] == arguments


def test_ranks_do_not_start_again_more_often_than_requested(script, no_user_config):
    code, stdout, stderr = finish(
        start("--num_processes=2", "--max_restarts=1", script(TRY), "0", "1", env=no_user_config)
    )
    assert code == 1
    assert stdout.count("pid ") == 4
    assert "error: Rank 1 on " in stderr
    assert stderr.splitlines()[-1] == "    | ValueError: attempt 1"


def test_ranks_start_again_after_a_failure_and_all_their_output_is_kept_in_files_too(
    tmp_path, script, no_user_config
):
    flags = [
        "--num_processes=2",
        "--max_restarts=1",
        "--tee=3",
        f"--log_dir={tmp_path / 'logs'}",
        "--role=me",
    ]
    code, stdout, stderr = finish(start(*flags, script(TRY), "0", "none", env=no_user_config))
    assert code == 0
    assert "error: Rank 1 on " not in stderr
    assert stdout.count("pid ") == 4
    assert "[me0]:pid " in stdout
    files = sorted((tmp_path / "logs").rglob("stdout.log"))
    assert [(file.parents[1].name, file.parent.name) for file in files] == [
        (attempt, rank) for attempt in ("attempt_0", "attempt_1") for rank in "01"
    ]
    assert all(file.read_text().startswith("pid ") for file in files)


def test_restarts_leave_to_the_ranks_what_a_signal_of_the_users_own_means(script, no_user_config):
    process = start("--num_processes=2", "--max_restarts=1", script(HEAR), env=no_user_config)
    pids_told(process, 2)
    for signum in (signal.SIGUSR1, signal.SIGUSR2):
        process.send_signal(signum)
        assert sorted(process.stdout.readline() for _ in range(2)) == [
            f"0 hears {int(signum)}\n",
            f"1 hears {int(signum)}\n",
        ]
    code, stdout, stderr = finish(process)
    assert (code, stdout, stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--log_dir={script}/logs"],
            "error: `--log_dir` is `{script}/logs`, where no folder can be made: Not a",
        ),
        (
            ["--rdzv_backend=foo", "--num_machines=2", "--main_process_ip=127.0.0.1", "--num_processes=2"],
            "error: The machines do not meet by `--rdzv_backend foo` at `127.0.0.1:29500`: The rendezvous backend",
        ),
    ],
)
def test_what_cannot_be_done_is_reported_in_one_line(script, no_user_config, flags, message):
    path = script("")
    code, _, stderr = finish(start(*[flag.format(script=path) for flag in flags], path, env=no_user_config))
    told = [line for line in stderr.splitlines() if line.startswith(("error", "Traceback"))]
    assert (code, len(told)) == (1, 1)
    assert told[0].startswith(message.format(script=path))


class RunsAsWhoeverReadsIt:
    """Its pickle makes a folder where it is read."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.folder,)


def test_machines_start_again_together(script, no_user_config, tmp_path):
    port = free_port()
    flags = ["--num_machines=2", "--num_processes=2", "--main_process_ip=127.0.0.1", "--max_restarts=1"]
    flags += [f"--main_process_port={port}"]
    path = script(FAIL_ONCE)
    machines = [start(*flags, "--machine_rank=0", path, env=no_user_config)]
    store = TCPStore("127.0.0.1", port, wait_for_workers=False)
    # torch's `c10d` would run what strangers write
    code = base64.b64encode(pickle.dumps(RunsAsWhoeverReadsIt(str(tmp_path / "ran"))))
    for name in ("torch.rendezvous.accel", "accel/accel/round/9/accel/machine/0", "accel/accel/message"):
        store.set(name, code)
    machines.append(start(*flags, "--machine_rank=1", path, env=no_user_config))
    for rank, (code, stdout, stderr) in enumerate([finish(machine) for machine in machines]):
        assert code == 0, stderr
        assert stdout.splitlines() == [f"rank {rank} attempt {attempt} of 2" for attempt in (0, 1)]
        assert "The ranks of all machines start again, for the 1. time." in stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("signum", "exit_code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_a_machine_that_waits_for_others_can_be_ended(script, no_user_config, signum, exit_code):
    flags = ["--num_machines=2", "--num_processes=2", "--main_process_ip=127.0.0.1", "--rdzv_backend=c10d"]
    process = start(*flags, f"--main_process_port={free_port()}", script(""), env=no_user_config)
    deadline = time.monotonic() + 60
    while not (
        rendezvous := [p for p in psutil.Process(process.pid).children(recursive=True) if "-P" in p.cmdline()]
    ):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signum)
    assert finish(process)[0] == exit_code
    assert are_gone([p.pid for p in rendezvous], within_s=10)


def test_no_rank_outlives_restarts_whose_launcher_is_killed(script, no_user_config):
    process = start("--num_processes=2", "--max_restarts=1", script(TRY), "0", "0", env=no_user_config)
    pids = pids_told(process, 2)
    process.kill()
    finish(process)
    assert are_gone(pids, within_s=30)


def test_the_launcher_stays_small(script, no_user_config):
    waits = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(60)"
    process = start("--num_processes", "2", script(waits), env=no_user_config)
    pids = pids_told(process, 2)
    resident_mib = psutil.Process(process.pid).memory_info().rss / 2**20
    process.send_signal(signal.SIGTERM)
    finish(process)
    assert are_gone(pids, within_s=30)
    assert resident_mib < 40


def test_a_folder_for_logs_is_enough_to_keep_what_ranks_write(script, tmp_path):
    tell = "import os, sys; print('out', os.environ['RANK']); print('err', file=sys.stderr)"
    code, stdout, _ = finish(
        start("--num_processes", "3", f"--log_dir={tmp_path / 'logs'}", script(tell), env={})
    )
    assert code == 0
    assert sorted(stdout.splitlines()) == [f"[default{rank}]:out {rank}" for rank in range(3)]
    files = sorted((tmp_path / "logs").glob("*/attempt_0/*/*.log"))
    assert [(file.parent.name, file.name, file.read_text()) for file in files] == [
        each
        for rank in "012"
        for each in ((rank, "stderr.log", "err\n"), (rank, "stdout.log", f"out {rank}\n"))
    ]


@pytest.mark.parametrize("code", ["1", "3"])
def test_an_exception_that_was_handled_is_not_the_first_failure(script, code):
    launched, _, stderr = finish(start("--num_processes", "2", script(HANDLED), code, env={}))
    assert launched == 1
    assert re.search(r"Rank 0 on \S+ failed first: it ended with exit code 1: ValueError: the cause", stderr)
    assert "Rank 1 only died of it" in stderr
