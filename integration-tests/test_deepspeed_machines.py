"""DeepSpeed's own runner over two machines, started by `accel launch`, through pdsh, Open MPI, or by hand."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
from two_machines import ADDRESSES

pytestmark = pytest.mark.engine("deepspeed")
SUM = """
import os, re, sys
import torch, torch.distributed as dist
from accel_state import PartialState
state = PartialState(cpu=True)
total = torch.tensor([float(state.process_index + 1)])
dist.all_reduce(total)
machine = int(re.search(r"10[.]77[.]0[.](\\d)\\s+/32 host LOCAL", open("/proc/self/net/fib_trie").read())[1])
names = ("MLFLOW_TRACKING_TOKEN", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY")
secrets = [name for name in names if machine == 2 and name in os.environ]
told = ["rank", state.process_index, "of", state.num_processes, "on", machine, "sees", total.item(), *secrets]
told += [os.environ["ACCELERATE_MIXED_PRECISION"], os.environ.get("MINE"), *sys.argv[1:]]
sys.stdout.write(" ".join(map(str, told)) + "\\n")  # in one piece: two ranks share the line to the launcher
state.destroy_process_group()
"""
WAIT = "import os, sys, time; open(f'{sys.argv[1]}/{os.getpid()}', 'w').close(); time.sleep(600)"
SECRETS = {"MLFLOW_TRACKING_TOKEN": "s3cret", "HF_TOKEN": "s3cret", "AWS_SECRET_ACCESS_KEY": "s3cret"}


@pytest.fixture
def launch(machines, tmp_path, monkeypatch):
    """Start a script on both machines; `ssh` knows its key and port, as it would from a person's own settings."""
    programs = tmp_path / "bin"
    programs.mkdir()

    def install(name: str, line: str) -> None:
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)

    install("ssh", f'exec {shutil.which("ssh")} {machines.ssh_options} "$@"')
    (tmp_path / "hosts").write_text("".join(f"{address} slots=2\n" for address in ADDRESSES))
    (tmp_path / ".deepspeed_env").write_text("MINE=sent\n")
    for name, value in (
        SECRETS
        | {"DS_ACCELERATOR": "cpu", "PATH": f"{programs}:{os.environ['PATH']}"}
        | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    ).items():
        monkeypatch.setenv(name, value)

    def start(
        body: str,
        *arguments: str,
        way: str,
        flags: tuple[str, ...] = (),
        program: str | None = None,
        machine: int = 0,
    ):
        if program is not None and shutil.which(program) is None:
            pytest.skip(f"`{program}` is not installed")
        if program is not None and program.startswith("mpirun."):  # where several MPIs are installed (Debian)
            install("mpirun", f'exec {shutil.which(program)} "$@"')
        (tmp_path / "train.py").write_text(body)
        command = [
            sys.executable,
            "-m",
            "accel_launch",
            "launch",
            "--cpu",
            "--use_deepspeed",
            "--num_machines=2",
        ]
        command += [
            f"--deepspeed_multinode_launcher={way}",
            "--deepspeed_hostfile=hosts",
            "--mixed_precision=bf16",
        ]
        command += [f"--main_process_ip={ADDRESSES[0]}", "--grace_period_s=5", *flags]
        return machines.start(machine, [*command, "train.py", *arguments], cwd=tmp_path)

    return start


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        stdout, stderr = process.communicate(timeout=300)
    finally:
        process.kill()
    return process.returncode, stdout, stderr


def told_by_ranks(stdout: str) -> list[str]:
    return sorted(
        line.partition("rank ")[2] for line in stdout.splitlines() if "rank " in line and " sees " in line
    )


@pytest.mark.parametrize(
    ("way", "program", "flags", "machines_of_ranks"),
    [
        ("pdsh", "pdsh", ("--num_processes=4",), "1122"),
        ("pdsh", "pdsh", ("--deepspeed_exclusion_filter", f"{ADDRESSES[0]}:1"), "122"),
        ("openmpi", "mpirun.openmpi", ("--num_processes=4",), "1122"),
        ("mpich", "mpirun.mpich", ("--num_processes=4",), "1122"),
    ],
    ids=["pdsh", "pdsh excluding", "openmpi", "mpich"],
)
def test_ranks_of_both_machines_add_up(launch, way, program, flags, machines_of_ranks):
    code, stdout, stderr = finish(launch(SUM, "--lr", "0.1", way=way, flags=flags, program=program))
    assert code == 0, stdout + stderr
    number = len(machines_of_ranks)
    total = float(sum(range(number + 1)))
    assert told_by_ranks(stdout) == [
        f"{rank} of {number} on {machine} sees {total} bf16 sent --lr 0.1"
        for rank, machine in enumerate(machines_of_ranks)
    ]
    assert "s3cret" not in stdout + stderr
    warned = next(line for line in stderr.splitlines() if "may hold a secret" in line)
    assert "`MLFLOW_TRACKING_TOKEN`" in warned
    assert "`HF_TOKEN`" in warned


def test_without_ssh_the_command_is_given_on_each_machine(launch):
    flags = ("--num_processes=2",)
    started = [
        launch(SUM, way="nossh", flags=(*flags, f"--machine_rank={rank}"), machine=rank) for rank in (0, 1)
    ]
    ended = [finish(process) for process in started]
    assert [code for code, _, _ in ended] == [0, 0], ended
    told = sorted(line for _, stdout, _ in ended for line in told_by_ranks(stdout))
    assert [line.partition(" sees ")[0] for line in told] == ["0 of 2 on 1", "1 of 2 on 2"]


def test_a_rank_that_fails_gives_a_failing_exit_code(launch):
    body = "import os, sys; sys.exit(3 if os.environ['RANK'] == '1' else 0)"
    code, _, stderr = finish(launch(body, way="pdsh", flags=("--num_processes=2",), program="pdsh"))
    assert code != 0
    assert "error: " in stderr


def test_nothing_is_left_when_the_launcher_is_ended(launch, tmp_path):
    pids = tmp_path / "pids"
    pids.mkdir()
    process = launch(WAIT, str(pids), way="pdsh", flags=("--num_processes=2",), program="pdsh")
    deadline = time.monotonic() + 180
    while len(list(pids.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    ranks = [psutil.Process(int(path.name)) for path in pids.iterdir()]
    assert len(ranks) == 2
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] != 0
    _, alive = psutil.wait_procs(ranks, timeout=30)
    assert [rank for rank in alive if rank.status() != psutil.STATUS_ZOMBIE] == []
