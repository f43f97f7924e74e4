"""Two network namespaces joined by a cable, with an sshd in each: two machines for the price of none."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import network_namespace
from network_namespace import daemon, ip, sigterm_like_ctrl_c, within

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
    """Return what this machine lacks for it."""
    for program in (_SSHD, "ssh", "ssh-keygen"):
        if shutil.which(program) is None:
            return f"`{program}` is not installed"
    return network_namespace.why_not()


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
            within(self.names[machine], command),
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
    for key in ("host_key", "user_key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(command, timeout=60, check=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(sigterm_like_ctrl_c())
        names = tuple(stack.enter_context(network_namespace.network_namespace(str(n))) for n in (1, 2))
        ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "eth0", "netns", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            config = folder / f"{name}.conf"
            config.write_text(_CONFIG.format(address=address, folder=folder, name=name))
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            stack.enter_context(daemon(name, [_SSHD, "-D", "-e", "-f", str(config)], stderr=log))
        for name in names:
            _wait_until_listening(name, log=folder / f"{name}.log")
        yield TwoMachines(names, folder)


def _wait_until_listening(name: str, *, log: Path) -> None:
    """Wait until something listens on port 2222 (8AE in hexadecimal) of a namespace."""
    deadline = time.monotonic() + 60
    command = within(name, ["cat", "/proc/net/tcp"])
    while b":08AE " not in subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no sshd in {name}: {log.read_text()}")
        time.sleep(0.05)
