"""A SLURM cluster of two nodes in a network namespace, from Debian's munge, slurmctld and slurmd.

Each node has two GPUs, of which SLURM knows only that there is a file for each: it counts them and gives them to jobs.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import network_namespace
from network_namespace import daemon, ip, sigterm_like_ctrl_c, within

_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")
_CONFIG = """
ClusterName=accel
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=6817
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
GresTypes=gpu
NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 Port=6818 CPUs=2 Gres=gpu:2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port=6819 CPUs=2 Gres=gpu:2
PartitionName=all Nodes=n0,n1 Default=YES MaxTime=INFINITE State=UP
PartitionName=gpu Nodes=n0,n1 MaxTime=INFINITE State=UP
"""


def why_not() -> str | None:
    """Return what this machine lacks for it."""
    missing = [program for program in _PROGRAMS if _find(program) is None]
    return f"not installed: {', '.join(missing)}" if missing else network_namespace.why_not()


@dataclass(frozen=True)
class Cluster:
    """How its commands are called."""

    folder: Path
    namespace: str

    @property
    def environ(self) -> dict[str, str]:
        return os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SLURM_CONF": f"{self.folder}/slurm.conf",
            "HF_HOME": f"{self.folder}/hf",
            "OMP_NUM_THREADS": "1",
            # The nodes have names that only SLURM knows.
            "GLOO_SOCKET_IFNAME": "lo",
            "MASTER_ADDR": "127.0.0.1",
        }

    def run(self, *command: str, cwd: Path | None = None, timeout_s: float = 180, check: bool = True) -> str:
        finished = subprocess.run(
            within(self.namespace, command),
            env=self.environ,
            cwd=cwd or self.folder,
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
    for name in ("munge", "state", "spool-n0", "spool-n1"):
        (folder / name).mkdir()
    (folder / "munge").chmod(0o755)
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(_CONFIG.format(host=host, folder=folder))
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-1]\n")
    for number in (0, 1):
        (folder / f"gpu{number}").touch()
    munge = [f"--{name}={folder}/munge/{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    with ExitStack() as stack:
        stack.enter_context(sigterm_like_ctrl_c())
        made = Cluster(folder, stack.enter_context(network_namespace.network_namespace("slurm")))
        # slurmctld finds no address to listen on where the loopback device is the only one (AI_ADDRCONFIG).
        ip("-n", made.namespace, "link", "add", "eth0", "type", "veth", "peer", "eth1")
        ip("-n", made.namespace, "address", "add", "10.77.1.1/24", "dev", "eth0")
        for device in ("eth0", "eth1"):
            ip("-n", made.namespace, "link", "set", device, "up")

        def start(name: str, *arguments: str) -> None:
            program = _find(name)
            assert program is not None
            log = stack.enter_context((folder / f"{name}.out").open("ab"))
            command, environ = [program, *arguments], made.environ
            stack.enter_context(
                daemon(made.namespace, command, env=environ, stdout=log, stderr=subprocess.STDOUT)
            )

        start("munged", "--foreground", "--force", f"--key-file={key}", *munge)
        _wait_until((folder / "munge" / "socket").exists, log=folder / "munged.out")
        start("slurmctld", "-D", "-c")
        for node in ("n0", "n1"):
            start("slurmd", "-D", "-N", node)
        _wait_until(partial(_are_idle, made), log=folder / "slurmctld.log")
        stack.callback(made.run, "scancel", "--user=root", "--signal=KILL", check=False)
        yield made


def _are_idle(made: Cluster) -> bool:
    return made.run("sinfo", "-h", "-o", "%T %D", check=False).split() == ["idle", "2"]


def _wait_until(is_so: Callable[[], bool], *, log: Path, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(log.read_text()[-2000:])
        time.sleep(0.1)


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
