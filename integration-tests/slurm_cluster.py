"""A SLURM cluster of two nodes on one machine, from Debian's munge, slurmctld and slurmd."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")
_CONFIG = """
ClusterName=accel
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=all Nodes=n0,n1 Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Say what this machine lacks for it."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "SLURM's daemons need Linux and root"
    missing = [program for program in _PROGRAMS if _find(program) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


@dataclass(frozen=True)
class Cluster:
    """How its commands are called."""

    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        return os.environ | {
            "SLURM_CONF": f"{self.folder}/slurm.conf",
            "HF_HOME": f"{self.folder}/hf",
            "OMP_NUM_THREADS": "1",
            # The nodes have names that only SLURM knows.
            "GLOO_SOCKET_IFNAME": "lo",
            "MASTER_ADDR": "127.0.0.1",
        }

    def run(self, *command: str, timeout_s: float = 90, check: bool = True) -> str:
        finished = subprocess.run(
            command,
            env=self.environ,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and finished.returncode != 0:
            raise AssertionError(
                f"{command} gave {finished.returncode}:\n{finished.stdout}\n{finished.stderr}"
            )
        return finished.stdout


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Start the daemons, and end them with the jobs that are left."""
    made = Cluster(folder)
    for name in ("munge", "state", "spool-n0", "spool-n1"):
        (folder / name).mkdir()
    (folder / "munge").chmod(0o755)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    host, ports = socket.gethostname().partition(".")[0], _free_ports(3)
    (folder / "slurm.conf").write_text(_CONFIG.format(host=host, ports=ports, folder=folder))
    munge = [f"--{name}={folder}/munge/{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={key}", *munge],
        ["slurmctld", "-D", "-c"],
        ["slurmd", "-D", "-N", "n0"],
        ["slurmd", "-D", "-N", "n1"],
    ]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            daemons.append(_start(command, made))
            time.sleep(0.5)
        _wait_until_idle(made)
        yield made
    finally:
        made.run("scancel", "--user=root", check=False)
        time.sleep(1)
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in reversed(daemons):
            try:
                daemon.wait(timeout=15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _start(command: Sequence[str], made: Cluster) -> subprocess.Popen[bytes]:
    program = _find(command[0])
    assert program is not None
    return subprocess.Popen(
        [program, *command[1:]],
        env=made.environ,
        stdin=subprocess.DEVNULL,
        stdout=(made.folder / f"{command[0]}.out").open("ab"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _wait_until_idle(made: Cluster) -> None:
    deadline = time.monotonic() + 40
    while made.run("sinfo", "-h", "-o", "%T %D", check=False).split() != ["idle", "2"]:
        if time.monotonic() > deadline:
            raise TimeoutError((made.folder / "slurmctld.log").read_text()[-2000:])
        time.sleep(0.5)


def _free_ports(number: int) -> list[int]:
    probes = [socket.create_server(("", 0)) for _ in range(number)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
