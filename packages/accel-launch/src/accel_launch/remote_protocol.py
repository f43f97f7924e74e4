"""What a launcher and its programs elsewhere write to each other: one line of JSON each way.

The first line of a program's standard input is its `Order`. Each further line is the number of a signal for the ranks,
and the end of the input means that the launcher is gone. How the ranks ended (`Endings`) is the last line that the
program writes to stderr, behind a mark that no rank writes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_launch.plan import LogSettings, ProcessPlan
from accel_launch.processes.child import ChildEnding
from accel_launch.processes.output import MESSAGE_MARK

# The Python and the folder of the program that gets an order, in place of those of a process.
PYTHON_THERE, FOLDER_THERE = "{python}", "{cwd}"
Types = Mapping[str, type | tuple[type, ...]]
# What the last lines of all ranks together may take: the launcher forgets the beginning of a line of 256 KiB.
_NUM_BYTES = 2**17
_NUM_CHARACTERS = 2000
_ENDINGS: Types = {"interrupted_by": (int, type(None)), "num_memory_kills": int, "ranks": list}
_RANK: Types = {"rank": int, "host": str, "return_code": int, "was_ended": bool, "last_lines": list}


@dataclass(frozen=True, slots=True)
class Order:
    """The ranks of one machine, and how they are run.

    By ``use_cpu`` their threads are counted there; None if their environment has the number. ``attempt`` counts their
    restarts.
    """

    processes: tuple[ProcessPlan, ...]
    grace_period_s: float
    use_cpu: bool | None = None
    attempt: int = 0
    prefix: str = ""
    shown_ranks: tuple[int, ...] | None = None
    logs: LogSettings | None = None

    def encode(self) -> bytes:
        """Return it as a line, with the values of private variables: no command line shows it."""
        data = {name: getattr(self, name) for name in self.__slots__}
        data["processes"] = [each.to_dict() | {"environ": each.variables()} for each in self.processes]
        if self.logs is not None:
            folder = None if self.logs.folder is None else str(self.logs.folder)
            data["logs"] = {"tee": self.logs.tee, "folder": folder, "role": self.logs.role}
        return json.dumps(data).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Order:
        """Return the order that a line of `encode` is."""
        data = json.loads(line)
        data["processes"] = tuple(
            ProcessPlan(
                tuple(each["argv"]),
                Path(each["cwd"]),
                each["environ"],
                tuple(each["unset"]),
                each["host"],
                each["rank"],
            )
            for each in data["processes"]
        )
        if data["logs"] is not None:
            folder = data["logs"]["folder"]
            data["logs"] = LogSettings(**{**data["logs"], "folder": folder and Path(folder)})
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Endings:
    """How the ranks of a program ended, which signal ended them, and how many processes had no memory."""

    ranks: tuple[ChildEnding, ...]
    interrupted_by: int | None = None
    num_memory_kills: int = 0

    def encode(self) -> bytes:
        """Return it as the last lines of a standard error; moments are given as seconds ago, since clocks differ."""
        now = time.monotonic()
        ranks = [
            {
                "rank": each.rank,
                "host": each.host,
                "return_code": each.return_code,
                "failed_ago_s": None if each.failed_at is None else now - each.failed_at,
                "was_ended": each.was_ended,
                "last_lines": last_lines_within(each.last_lines, _NUM_BYTES // len(self.ranks)),
            }
            for each in self.ranks
        ]
        data = {
            "interrupted_by": self.interrupted_by,
            "num_memory_kills": self.num_memory_kills,
            "ranks": ranks,
        }
        return MESSAGE_MARK + b"\n" + MESSAGE_MARK + json.dumps(data).encode() + b"\n"

    @classmethod
    def last_in(cls, lines: Sequence[str]) -> Endings | None:
        """Return the last of `encode` in the lines that a program has written; None without a sound one."""
        mark = MESSAGE_MARK.decode()
        found = [line for line in lines if line.startswith(mark)]
        data = read_table(found[-1].removeprefix(mark), _ENDINGS) if found else None
        if data is None or not all(has_entries(rank, _RANK) for rank in data["ranks"]):
            return None
        now = time.monotonic()
        ranks = tuple(
            ChildEnding(
                rank["return_code"],
                now - ago if isinstance(ago := rank.get("failed_ago_s"), float) else None,
                rank["was_ended"] or data["interrupted_by"] is not None,
                tuple(map(str, rank["last_lines"])),
                rank=rank["rank"],
                host=rank["host"],
            )
            for rank in data["ranks"]
        )
        return cls(ranks, data["interrupted_by"], data["num_memory_kills"])


def last_lines_within(lines: Sequence[str], num_bytes: int) -> list[str]:
    """Return as many of the last lines as come to ``num_bytes`` of JSON; of long ones, the beginning."""
    kept: list[str] = []
    for line in reversed(lines):
        end = line[:_NUM_CHARACTERS]
        num_bytes -= len(json.dumps(end)) + 2
        if num_bytes < 0:
            break
        kept.insert(0, end)
    return kept


def has_entries(value: object, types: Types) -> bool:
    """Whether ``value`` is a table that has entries of these types, and perhaps others."""
    if not isinstance(value, dict) or not types.keys() <= value.keys():
        return False
    return all(isinstance(value[name], kind) for name, kind in types.items())


def read_table(text: str | bytes, types: Types) -> dict[str, Any] | None:
    """Return the table that another machine wrote as JSON if it `has_entries` of these types, else None."""
    with suppress(ValueError, RecursionError):
        table: dict[str, Any] = json.loads(text)
        return table if has_entries(table, types) else None
    return None
