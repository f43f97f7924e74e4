"""The machines that ``--hosts`` or ``--hostfile`` name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from accel_launch.config.file import read_text_file
from accel_launch.request import LaunchRequest, checked_number, chooses_gpus
from accel_state.errors import ConfigError

_HOST = re.compile(r"(?P<name>[A-Za-z0-9_.@\[\]:%-]+?)(?:(?::|\s+slots\s*=\s*)(?P<slots>\d+))?")


@dataclass(frozen=True, slots=True)
class Host:
    """A machine, as ``ssh`` knows it, and its number of processes, if given."""

    name: str
    slots: int | None = None

    @property
    def address(self) -> str:
        """The name without the user's."""
        return self.name.rpartition("@")[2]


def hosts_of(request: LaunchRequest) -> tuple[Host, ...]:
    """Return the machines that ``request`` names, in order.

    Raises:
        ConfigError: If they are named twice over, cannot be read, or one occurs twice.
    """
    names, file = request.value("hosts"), request.value("hostfile")
    if names and file:
        raise ConfigError("`--hosts` and `--hostfile` both name the machines. Give one of them.")
    given = map(str.strip, (names or "").split(","))
    hosts = tuple(_host(name, "`--hosts`") for name in given if name) if names else _from_file(request, file)
    seen: set[str] = set()
    for host in hosts:
        if host.name in seen:
            raise ConfigError(f"The host `{host.name}` is named twice. Give it once, as `{host.name}:N`.")
        seen.add(host.name)
    return hosts


def num_ranks_on_each(request: LaunchRequest, hosts: tuple[Host, ...]) -> int | None:
    """Return how many processes each host runs, the same number on all; None if their accelerators decide.

    Raises:
        ConfigError: If the numbers that were given contradict each other.
    """
    machines = request.settings["num_machines"]
    if machines.source == "flag" and machines.value != len(hosts):
        raise ConfigError(
            f"`--num_machines` is {machines.value}, but {len(hosts)} hosts are named. "
            "Leave `--num_machines` out, or name as many hosts."
        )
    slots = {host.slots for host in hosts if host.slots is not None}
    if len(slots) > 1:
        raise ConfigError(f"All hosts must run the same number of processes, but theirs are {sorted(slots)}.")
    asked: int | None = request.value("num_processes")
    here = checked_number(slots.pop() * len(hosts)) // len(hosts) if slots else None
    if (
        asked is not None
        and machines.value == 1
        and request.settings["num_processes"].source == "config file"
    ):
        asked *= len(hosts)  # in a file for one machine it is the number on that machine
    if asked is None:
        return here or _num_unasked(request)
    if asked % len(hosts) or (here is not None and asked != here * len(hosts)):
        raise ConfigError(
            f"`--num_processes` is {asked}, which counts the processes of all hosts, but there are {len(hosts)} "
            f"hosts{'' if here is None else f' with {here} each'}. Set it to the sum over all hosts, or leave it out."
        )
    return asked // len(hosts)


def _num_unasked(request: LaunchRequest) -> int | None:
    if request.value("use_cpu"):
        return 1
    selection = request.settings["gpu_ids"]
    return len(selection.value.split(",")) if chooses_gpus(selection) else None


def _from_file(request: LaunchRequest, file: str) -> tuple[Host, ...]:
    lines = read_text_file(request.cwd / file, what=f"The hostfile `{file}`").splitlines()
    texts = [line.partition("#")[0].strip() for line in lines]
    hosts = tuple(_host(text, f"the hostfile `{file}`") for text in texts if text)
    if not hosts:
        raise ConfigError(
            f"The hostfile `{file}` names no machine. Write a line for each, such as `host1 slots=4`."
        )
    return hosts


def _host(text: str, where: str) -> Host:
    match = _HOST.fullmatch(text)
    # What begins with a dash would be an option of `ssh`.
    if match is None or text.startswith("-") or "@-" in text or match["slots"] == "0":
        raise ConfigError(
            f"`{text}` in {where} is no host. Write `host1` or `host1:4` (`host1 slots=4` in a file)."
        )
    return Host(match["name"], None if match["slots"] is None else int(match["slots"]))
