"""A launch as plain data: which command runs where, in which directory, with which variables."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

LOCAL_HOST = "localhost"


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """One process to start. Its environment is the host's, less ``unset``, plus ``environ``, plus ``private``.

    ``private`` has variables whose values are never shown.
    ``rank`` is the rank that the process is; None for one that is more, or none at all.
    """

    argv: tuple[str, ...]
    cwd: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    host: str = LOCAL_HOST
    rank: int | None = None
    private: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "environ", MappingProxyType(dict(self.environ)))
        object.__setattr__(self, "private", MappingProxyType(dict(self.private)))

    def environ_on(self, host_environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the process on a host with the environment ``host_environ``."""
        kept = {name: value for name, value in host_environ.items() if name not in self.unset}
        return kept | self.variables()

    def variables(self) -> dict[str, str]:
        """Return the variables that it gets in addition to those of the host, with their values."""
        return dict(self.environ) | dict(self.private)

    def with_variables(self, **variables: str) -> ProcessPlan:
        """Return it with more variables, such as a port that was chosen at the start."""
        return replace(self, environ={**self.environ, **variables})

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data, with the names of the private variables only."""
        return {
            "host": self.host,
            "rank": self.rank,
            "argv": list(self.argv),
            "cwd": str(self.cwd),
            "environ": dict(sorted(self.environ.items())),
            "unset": list(self.unset),
            "private": sorted(self.private),
        }


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The output of the ranks to keep in files: ``tee`` as in its flag, in ``folder`` or, if None, a new one."""

    tee: str = "0"
    folder: Path | None = None
    role: str = "default"


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What a launcher is going to do; nothing has happened yet.

    ``processes`` are those that the launcher itself starts; another program among them may start the ranks, whose
    number is ``num_ranks`` (0: other machines' accelerators decide). ``port`` must be free; None lets one be found
    while starting. ``is_quiet`` leaves out the report on the screen that says how a run failed; ``report`` is a file
    to write it to as JSON. ``max_restarts`` is how often all processes start again after one has failed.
    ``prefix`` is written before each line of a rank on the screen, which shows those of ``shown_ranks`` only, if given.
    ``options`` is what else this launcher needs to run the plan, ``secrets`` the part of that which is never shown.
    ``shown_option`` is the one that the description ends with.
    ``document`` is what it hands to another program instead of starting processes, for a file or a pipe; it is then
    the description, and nothing else.
    """

    launcher: str
    processes: tuple[ProcessPlan, ...]
    num_ranks: int
    grace_period_s: float = 30.0
    port: int | None = None
    is_quiet: bool = False
    report: Path | None = None
    max_restarts: int = 0
    prefix: str = ""
    shown_ranks: tuple[int, ...] | None = None
    logs: LogSettings | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    document: str | None = None
    shown_option: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))
        object.__setattr__(self, "secrets", MappingProxyType(dict(self.secrets)))

    def with_private(self, variables: Mapping[str, str]) -> LaunchPlan:
        """Return it with these variables for each process; no description shows their values."""
        processes = tuple(replace(process, private=variables) for process in self.processes)
        return replace(self, processes=processes)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data, without the secrets."""
        return {
            "launcher": self.launcher,
            "num_ranks": self.num_ranks,
            "grace_period_s": self.grace_period_s,
            "port": self.port,
            "is_quiet": self.is_quiet,
            "report": None if self.report is None else str(self.report),
            "max_restarts": self.max_restarts,
            "prefix": self.prefix,
            "shown_ranks": None if self.shown_ranks is None else list(self.shown_ranks),
            "tee": "0" if self.logs is None else self.logs.tee,
            "log_dir": None if self.logs is None or self.logs.folder is None else str(self.logs.folder),
            "options": dict(self.options),
            **({} if self.document is None else {"document": self.document}),
            "processes": [process.to_dict() for process in self.processes],
        }

    def describe(self) -> str:
        """Return it as a text for people, with commands that can be pasted into a shell; or its document."""
        if self.document is not None:
            return self.document.rstrip("\n")
        ranks = self.num_ranks or "one for each accelerator"
        lines = [f"launcher     {self.launcher}", f"ranks        {ranks}"]
        if any("MASTER_ADDR" in process.environ for process in self.processes):
            lines.append(f"port         {self.port or 'a free one'}")
        lines += [] if self.report is None else [f"report       {self.report}"]
        lines += [f"restarts     {self.max_restarts}"] if self.max_restarts else []
        for process in self.processes:
            lines += ["", f"host         {process.host}"]
            lines += [] if process.rank is None else [f"rank         {process.rank}"]
            lines += [f"directory    {process.cwd}"]
            lines += [f"variable     {name}={value}" for name, value in sorted(process.environ.items())]
            lines += [f"variable     {name} (not shown)" for name in sorted(process.private)]
            lines += [f"unset        {name}" for name in process.unset]
            lines.append(f"command      {shlex.join(process.argv)}")
        shown = self.options.get(self.shown_option)
        lines += ["", shown.rstrip()] if shown else []
        return "\n".join(lines)
