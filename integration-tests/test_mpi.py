"""`accel launch --use_mpirun` and `mpirun accel launch` with the real Open MPI and MPICH."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

SUM = """
import json, os, sys
import torch
from accel import Accelerator
accelerator = Accelerator(cpu=True)
total = accelerator.reduce(torch.tensor([float(accelerator.process_index + 1)]), "sum")
seen = [accelerator.process_index, accelerator.num_processes, accelerator.local_process_index, total.item()]
with open(f"{sys.argv[1]}/{accelerator.process_index}.json", "w") as file:
    json.dump(seen, file)
accelerator.end_training()
"""
# Stands for `ssh` and another machine: what it starts has nothing of this environment.
SSH = """#!/bin/bash
while [[ "$1" == -* ]]; do shift; done
shift
exec env -i PATH=/usr/bin:/bin HOME="$HOME" bash -c "$*"
"""
TELL = """
import json, os, sys
with open(f"{sys.argv[1]}/environ.json", "w") as file:
    json.dump(dict(os.environ), file)
"""
WAIT = "import os, sys, time; open(f'{sys.argv[1]}/{os.getpid()}', 'w').close(); time.sleep(600)"

# What the installed programs are called where several MPIs live side by side (Debian).
OPEN_MPI = pytest.param("mpirun.openmpi", marks=pytest.mark.engine("openmpi"))
MPICH = pytest.param("mpirun.mpich", marks=pytest.mark.engine("mpich"))


@pytest.fixture(params=[OPEN_MPI, MPICH])
def mpi(request, tmp_path) -> Path:
    """Return a folder with one of the MPIs as `mpirun`."""
    program = shutil.which(request.param)
    if program is None:
        pytest.skip(f"`{request.param}` is not installed")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "mpirun").symlink_to(program)
    if shutil.which("hydra_pmi_proxy"):  # MPICH looks for it next to the program
        (folder / "hydra_pmi_proxy").symlink_to(shutil.which("hydra_pmi_proxy"))
    return folder


@pytest.fixture
def start(mpi, tmp_path):
    """Start a script with `accel launch`, which starts `mpirun`, or which `mpirun` starts."""

    def run(
        body: str,
        *arguments: str,
        flags: Sequence[str] = ("--use_mpirun", "--num_processes=2"),
        mpirun: Sequence[str] = (),
        **variables: str,
    ) -> subprocess.Popen[str]:
        script = tmp_path / "train.py"
        script.write_text(body)
        environ = os.environ | {
            "PATH": f"{mpi}:{os.environ['PATH']}",
            "HF_HOME": str(tmp_path / "hf"),
            "OMP_NUM_THREADS": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }
        command = [*mpirun, sys.executable, "-m", "accel_launch", "launch", "--cpu", *flags]
        return subprocess.Popen(
            [*command, str(script), *arguments],
            env=environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return run


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        _, stderr = process.communicate(timeout=180)
    finally:
        process.kill()
    return process.returncode, stderr


def test_two_ranks_add_up(start, tmp_path: Path):
    code, stderr = finish(start(SUM, str(tmp_path)))
    assert (code, [line for line in stderr.splitlines() if "error" in line.lower()]) == (0, [])
    for rank in (0, 1):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == [rank, 2, rank, 3.0]


@pytest.mark.parametrize("flags", [(), ("--num_processes=2",)])
def test_each_task_of_mpirun_becomes_one_rank(start, tmp_path, flags):
    mpirun = (
        "mpirun",
        "-n",
        "2",
        *(["--oversubscribe"] if "openmpi" in os.readlink(tmp_path / "bin/mpirun") else []),
    )
    with socket.socket() as taken:  # nobody can find a free port for tasks that do not know of each other
        taken.bind(("127.0.0.1", 0))
        port = f"--main_process_port={taken.getsockname()[1]}"
    code, stderr = finish(start(SUM, str(tmp_path), flags=(*flags, port), mpirun=mpirun))
    assert (code, [line for line in stderr.splitlines() if "error" in line.lower()]) == (0, [])
    for rank in (0, 1):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == [rank, 2, rank, 3.0]


def test_ranks_have_the_variables_of_env_and_no_command_line_has(start, tmp_path):
    look = """
import os, pathlib, sys
lines = [path.read_bytes() for path in pathlib.Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
open(f"{sys.argv[1]}/{os.getpid()}", "w").write(os.environ["MY_TOKEN"] + str(sum(b"hushed" in line for line in lines)))
"""
    seen = tmp_path / "seen"
    seen.mkdir()
    flags = ("--use_mpirun", "--num_processes=2", "--env", "MY_TOKEN")
    code, stderr = finish(start(look, str(seen), flags=flags, MY_TOKEN="hushed"))
    assert (code, stderr) == (0, "")
    assert [path.read_text() for path in seen.iterdir()] == ["hushed0", "hushed0"]


def test_a_failing_rank_gives_its_exit_code(start):
    assert finish(start("import sys; sys.exit(3)"))[0] == 3


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_launcher_is_ended(start, tmp_path, signum):
    pids = tmp_path / "pids"
    pids.mkdir()
    process = start(WAIT, str(pids))
    deadline = time.monotonic() + 120
    while len(list(pids.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    ranks = [psutil.Process(int(path.name)) for path in pids.iterdir()]
    assert len(ranks) == 2
    process.send_signal(signum)
    finish(process)
    _, alive = psutil.wait_procs(ranks, timeout=30)
    assert [rank for rank in alive if rank.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize("mpi", [MPICH], indirect=True)  # Open MPI sends only what it is told to
def test_another_machine_gets_the_settings_and_a_list_but_no_secret(start, tmp_path):
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    (tmp_path / "hosts").write_text("elsewhere\n")
    flags = [
        "--use_mpirun",
        "--num_processes=1",
        f"--mpirun_hostfile={tmp_path / 'hosts'}",
        "--mixed_precision=bf16",
    ]
    code, stderr = finish(start(TELL, str(tmp_path), flags=flags, WANDB_API_KEY="secret", NCCL_DEBUG="INFO"))
    assert (code, stderr) == (0, "")
    seen = json.loads((tmp_path / "environ.json").read_text())
    assert (seen["ACCELERATE_MIXED_PRECISION"], seen["NCCL_DEBUG"]) == ("bf16", "INFO")
    assert (seen["MASTER_ADDR"], seen["MASTER_PORT"]) == ("127.0.0.1", "29500")
    assert "WANDB_API_KEY" not in seen
