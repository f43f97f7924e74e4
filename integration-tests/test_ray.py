"""Launches on real Ray clusters: one that is started for the run, and one of two nodes that exists."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from documented import DOCS, blocks, commands, with_replacements

pytestmark = [pytest.mark.engine("ray"), pytest.mark.slow]

REDUCE = """
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor(float(dist.get_rank() + 1))
dist.all_reduce(total)
place = [os.environ[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")]
print(*place, total.item(), *sys.argv[1:], flush=True)
dist.destroy_process_group()
"""
FAIL = """
import os, sys, time
print("pid", os.getpid(), flush=True)
if os.environ["RANK"] == "1":
    raise ValueError("told to")
time.sleep(600)
"""
HANG = """
import os, signal, time
for signum in (signal.SIGINT, signal.SIGTERM):
    signal.signal(signum, signal.SIG_IGN)
print("pid", os.getpid(), flush=True)
time.sleep(600)
"""
SAVE = """
import os, pathlib, signal, sys, time

def save(signum, frame):
    pathlib.Path(f"saved{os.environ['RANK']}").touch()
    sys.exit(9)

signal.signal(signal.SIGTERM, save)
print("pid", os.getpid(), flush=True)
time.sleep(600)
"""
LONG_S = 300
"""How long a test waits for what takes seconds on a machine with nothing else to do."""


@pytest.fixture(scope="module")
def address():
    from ray.cluster_utils import Cluster

    # The GPUs are Ray's alone: it counts them and gives them to ranks.
    head = {"num_cpus": 2, "num_gpus": 1, "include_dashboard": False}
    with pytest.MonkeyPatch.context() as environ:
        environ.delenv(
            "CUDA_VISIBLE_DEVICES", raising=False
        )  # the tests hide GPUs; Ray refuses to count hidden ones
        cluster = Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(num_cpus=2, num_gpus=1)
    yield cluster.address
    cluster.shutdown()


class Launch:
    """A launch in the background; its output is in a file."""

    def __init__(self, folder: Path, *arguments: str, script: str = "train.py") -> None:
        self._output = folder / "output.txt"
        environ = os.environ | {"HF_HOME": str(folder)}
        environ.pop("RAY_ADDRESS", None)
        with self._output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "accel_launch", "launch", *arguments],
                cwd=folder,
                env=environ,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def output(self) -> str:
        return self._output.read_text()

    def wait(self) -> int:
        return self.process.wait(LONG_S)

    def pids(self, count: int) -> list[int]:
        """Wait until ``count`` ranks have told their number, and return those."""
        deadline = time.monotonic() + LONG_S
        while time.monotonic() < deadline and self.process.poll() is None:
            found = [int(line.split()[1]) for line in self.output().splitlines() if line.startswith("pid ")]
            if len(found) == count:
                return found
            time.sleep(0.1)
        raise AssertionError(self.output())


@pytest.fixture
def launch(tmp_path):
    started, workers = [], ray_workers()

    def start(
        script: str, *arguments: str, flags: tuple[str, ...] = ("--launcher", "ray", "--cpu")
    ) -> Launch:
        (tmp_path / "train.py").write_text(script)
        started.append(Launch(tmp_path, *flags, *arguments))
        return started[-1]

    yield start
    for each in started:
        with contextlib.suppress(ProcessLookupError):
            each.process.kill()
    idle = ray_workers() - workers  # a cluster may keep processes for later jobs
    for worker in idle:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.kill()
    wait_until_gone([worker.pid for worker in idle])


def ray_workers() -> set[psutil.Process]:
    """Return the processes of the clusters that run no job, or none any more."""
    return {child for child in psutil.Process().children(recursive=True) if is_idle(child)}


def is_idle(process: psutil.Process) -> bool:
    try:
        return " ".join(process.cmdline()).startswith("ray::IDLE")
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + LONG_S
    while any(psutil.pid_exists(pid) for pid in pids):
        assert time.monotonic() < deadline, "ranks are left running"
        time.sleep(0.1)


GUIDE = DOCS / "launch" / "clusters.md"


def launches_of_the_guide() -> list[str]:
    texts = [text for block in blocks(GUIDE, "bash") for _, text in commands(block)]
    return [text.strip() for text in texts if "--launcher ray" in text]


@pytest.mark.parametrize("text", launches_of_the_guide())
def test_the_script_of_the_guide_runs_by_its_commands(launch, address, text):
    """The cluster of the guide has sixteen GPUs, ours two."""
    (script,) = (block.text for block in blocks(GUIDE, "python"))
    ours = {"10.0.0.1:6379": address, "--num_processes 16": "--num_processes 2"}
    program, command, *words = shlex.split(with_replacements(text, ours))
    assert (program, command) == ("accel", "launch")
    running = launch(script, *words, flags=())
    assert running.wait() == 0, running.output()
    assert set(running.output().splitlines()) == {"2 ranks met: [0, 1]"}  # which each machine prints


def test_two_ranks_reduce_on_a_separate_cluster(launch):
    running = launch(REDUCE, "--num_processes", "2", "train.py", "--lr", "1")
    code = running.wait()
    lines = sorted(running.output().splitlines())
    assert (code, lines) == (0, ["0 0 2 0 1 3.0 --lr 1", "1 1 2 0 1 3.0 --lr 1"])


def test_machines_are_nodes_of_a_cluster_that_exists(launch, address):
    flags = ("--ray_address", address, "--num_machines", "2", "--num_processes", "4")
    running = launch(REDUCE, *flags, "train.py")
    code = running.wait()
    lines = sorted(running.output().splitlines())
    expected = ["0 0 2 0 2 10.0", "1 1 2 0 2 10.0", "2 0 2 1 2 10.0", "3 1 2 1 2 10.0"]
    assert (code, lines) == (0, expected)


def test_the_first_failure_ends_all_and_is_reported(launch, address, tmp_path):
    flags = ("--ray_address", address, "--num_processes", "2", "--report", "report.json")
    running = launch(FAIL, *flags, "train.py")
    assert running.wait() == 1
    assert "Rank 1 on " in running.output()
    assert "failed first: it ended with exit code 1: ValueError: told to (" in running.output()
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["first_failure"]["exception"]["message"] == "told to"
    assert [rank["outcome"] for rank in report["ranks"]] == ["died of it", "failed first"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=lambda signum: signum.name)
def test_ranks_that_hang_are_killed_after_the_grace_period(launch, address, signum):
    running = launch(
        HANG, "--ray_address", address, "--num_processes", "2", "--grace_period_s", "1", "train.py"
    )
    pids = running.pids(2)
    running.process.send_signal(signum)
    assert running.wait() == 128 + signal.SIGKILL
    wait_until_gone(pids)


def test_a_second_interrupt_does_not_wait_for_the_grace_period(launch, address):
    running = launch(
        HANG, "--ray_address", address, "--num_processes", "2", "--grace_period_s", "600", "train.py"
    )
    pids = running.pids(2)
    running.process.send_signal(signal.SIGINT)
    time.sleep(1)
    running.process.send_signal(signal.SIGINT)
    assert running.wait() != 0
    wait_until_gone(pids)


def test_ranks_may_save_before_the_end(launch, address, tmp_path):
    running = launch(SAVE, "--ray_address", address, "--num_processes", "2", "train.py")
    pids = running.pids(2)
    running.process.terminate()
    assert running.wait() == 9
    assert sorted(file.name for file in tmp_path.glob("saved*")) == ["saved0", "saved1"]
    wait_until_gone(pids)


def test_nothing_outlives_a_launcher_that_is_killed(launch):
    running = launch(HANG, "--num_processes", "2", "train.py")
    pids = running.pids(2)
    started = psutil.Process(running.process.pid).children(recursive=True)
    assert {"raylet", "gcs_server"} <= {process.name() for process in started}
    running.process.kill()
    wait_until_gone([*pids, *(process.pid for process in started)])


def test_a_cluster_without_room_is_reported_after_the_wait(launch, address):
    flags = (
        "--ray_address",
        address,
        "--num_processes",
        "2",
        "--ray_cpus_per_process",
        "64",
        "--ray_wait_s",
        "1",
    )
    running = launch(REDUCE, *flags, "train.py")
    assert running.wait() == 1
    assert "error: The Ray cluster has no room for 2 x {'CPU': 64} within 1 s" in running.output()


def test_files_come_with_the_runtime_env(launch, address, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "beside.py").write_text("import os\nprint(os.environ['WORD'], __file__)\n")
    (tmp_path / "env.yaml").write_text(f"working_dir: {tmp_path / 'code'}\nenv_vars:\n  WORD: given\n")
    flags = ("--ray_address", address, "--num_processes", "1", "--ray_runtime_env", "env.yaml")
    running = launch("", *flags, "-m", "beside")
    assert running.wait() == 0, running.output()
    word, file = running.output().split()
    assert word == "given"
    assert Path(file).parent != tmp_path / "code"
