"""Two network namespaces joined by a cable, with an sshd in each: two machines for the price of none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ADDRESSES = ("10.77.0.1", "10.77.0.2")
_SSHD = "/usr/sbin/sshd"
_CONFIG = """
Port 2222
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile {folder}/{name}.pid
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
SetEnv GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1 HF_HOME={folder}/hf
"""


def why_not() -> str | None:
    """Say what this machine lacks for it."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    for program in ("ip", _SSHD, "ssh", "ssh-keygen"):
        if shutil.which(program) is None:
            return f"`{program}` is not installed"
    name = f"accel-try-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, timeout=20, check=False).returncode:
        return "this machine may not make network namespaces"
    subprocess.run(["ip", "netns", "del", name], timeout=20, check=False)
    return None


@dataclass(frozen=True)
class TwoMachines:
    """Names of the namespaces, and what `ssh` needs to get into them."""

    names: tuple[str, str]
    folder: Path

    @property
    def ssh_options(self) -> str:
        key = f"-p 2222 -i {self.folder}/user_key -o StrictHostKeyChecking=no"
        return f"{key} -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"

    def start(self, machine: int, command: Sequence[str], **options: object) -> subprocess.Popen[str]:
        """Start a command on machine 0 or 1."""
        environ = os.environ | {
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
            "HF_HOME": f"{self.folder}/hf",
        }
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[machine], *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
            start_new_session=True,
            **options,
        )


@contextmanager
def two_machines(folder: Path) -> Iterator[TwoMachines]:
    """Make the machines, and take them away with all that runs in them."""
    names = tuple(f"accel-{os.getpid()}-{number}" for number in (1, 2))
    for key in ("host_key", "user_key"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
    Path("/run/sshd").mkdir(exist_ok=True)
    daemons = []
    try:
        for name in names:
            _run("ip", "netns", "add", name)
        _run(
            "ip", "link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "eth0", "netns", names[1]
        )
        for name, address in zip(names, ADDRESSES, strict=True):
            _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _run("ip", "-n", name, "link", "set", device, "up")
            config = folder / f"{name}.conf"
            config.write_text(_CONFIG.format(address=address, folder=folder, name=name))
            daemons.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", name, _SSHD, "-D", "-e", "-f", str(config)],
                    stderr=(folder / f"{name}.log").open("w"),
                )
            )
        _wait_until_listening(names)
        yield TwoMachines(names, folder)
    finally:
        for daemon in daemons:
            daemon.terminate()
            daemon.wait(timeout=20)
        for name in names:
            for pid in _run("ip", "netns", "pids", name, check=False).split():
                os.kill(int(pid), 9)
            _run("ip", "netns", "del", name, check=False)


def _wait_until_listening(names: Sequence[str]) -> None:
    deadline = time.monotonic() + 20
    for name in names:
        while ":2222" not in _run("ip", "netns", "exec", name, "cat", "/proc/net/tcp").replace(
            ":08AE", ":2222"
        ):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no sshd in {name}")
            time.sleep(0.1)


def _run(*command: str, check: bool = True) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=30, check=check).stdout
