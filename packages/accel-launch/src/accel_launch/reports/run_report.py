"""What became of a run: the rank that failed first, those that failed too, those that only died of it."""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from accel_launch.processes.child import ChildEnding
from accel_launch.processes.ending import describe_ending, exit_code_for_shell, signal_name
from accel_launch.processes.signals import known_signals
from accel_launch.reports.tracebacks import FoundException, find_exception

Outcome = Literal["succeeded", "failed", "interrupted"]
RankOutcome = Literal["finished", "failed first", "failed too", "died of it"]

_NUM_LAST_LINES = 10


@dataclass(frozen=True, slots=True)
class RankReport:
    """How one rank ended. ``exception`` is the one whose traceback is among its ``last_lines``.

    ``failed_at`` is the moment at which it showed that it was failing, in UTC by the clock of this machine.
    ``had_ended`` tells that it finished before another rank failed.
    """

    rank: int
    host: str
    outcome: RankOutcome
    return_code: int
    reason: str
    exception: FoundException | None = None
    last_lines: tuple[str, ...] = ()
    failed_at: datetime | None = None
    had_ended: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        exception = self.exception
        return {
            "rank": self.rank,
            "host": self.host,
            "outcome": self.outcome,
            "exit_code": self.return_code if self.return_code >= 0 else None,
            "signal": signal_name(-self.return_code) if self.return_code < 0 else None,
            "reason": self.reason,
            "failed_at": self.failed_at and self.failed_at.isoformat(timespec="milliseconds"),
            "exception": exception
            and {
                "type": exception.type,
                "message": exception.message,
                "file": exception.file,
                "line": exception.line,
                "function": exception.function,
            },
            "last_lines": list(self.last_lines),
        }


@dataclass(frozen=True, slots=True)
class RunReport:
    """How a run ended; ``exit_code`` is the one that the launcher ends with.

    ``ranks`` are those of which the end is known, ``num_ranks`` counts all of the run.
    """

    outcome: Outcome
    exit_code: int
    ranks: tuple[RankReport, ...]
    num_ranks: int

    @property
    def first(self) -> RankReport | None:
        """The rank that failed first; None if none failed by itself."""
        return next((rank for rank in self.ranks if rank.outcome == "failed first"), None)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return {
            "outcome": self.outcome,
            "exit_code": self.exit_code,
            "first_failure": None if self.first is None else self.first.to_dict(),
            "ranks": [rank.to_dict() for rank in self.ranks],
        }


@dataclass(frozen=True, slots=True)
class RankEnding:
    """How the process of one rank on one host ended."""

    rank: int
    host: str
    ending: ChildEnding


def make_report(
    ranks: Sequence[RankEnding],
    *,
    num_ranks: int | None = None,
    interrupted_by: int | None = None,
    num_memory_kills: int = 0,
) -> RunReport:
    """Find the first cause among the endings of ranks.

    It is the rank whose failure showed first, but one that only complains of a lost peer comes after all
    others, however quick it was. Ranks that were asked to end, or that lost a peer, died of it.

    Args:
        ranks: The ranks of which the end is known.
        num_ranks: How many the run had; as many as ``ranks`` if None.
        interrupted_by: The signal that ended the run, if one did.
        num_memory_kills: How many processes the kernel killed meanwhile because memory ran out.
    """
    found = {rank.rank: find_exception(rank.ending.last_lines) for rank in ranks}
    named = {match[1] for each in found.values() if each and (match := _NAMED_RANK.search(each.message))}
    weights = {rank.rank: _weight(rank, found[rank.rank], named) for rank in ranks}
    failed = [rank for rank in ranks if rank.ending.return_code != 0]
    first = min(
        failed, key=lambda rank: (weights[rank.rank], rank.ending.failed_at or 0.0, rank.rank), default=None
    )
    was_stopped = interrupted_by is not None or (
        first is not None and first.ending.return_code == -signal.SIGINT
    )
    outcome: Outcome = "interrupted" if was_stopped else "succeeded" if first is None else "failed"
    cause = None if was_stopped else first
    has_lost_peer = cause is not None and weights[cause.rank] == _LOST_A_PEER
    before_s = math.inf if has_lost_peer else (cause and cause.ending.failed_at) or 0.0
    reports = [
        _rank_report(rank, _outcome(rank, weights[rank.rank], first=cause), before_s, num_memory_kills)
        for rank in ranks
    ]
    return RunReport(
        outcome,
        _exit_code(first, cause, interrupted_by),
        tuple(reports),
        len(ranks) if num_ranks is None else num_ranks,
    )


def _exit_code(first: RankEnding | None, cause: RankEnding | None, interrupted_by: int | None) -> int:
    if first is None:
        return 0
    if interrupted_by == signal.SIGINT and first.ending.return_code == 1:
        # After a `KeyboardInterrupt`, Python ends with 1 instead of by SIGINT if an exit handler has evaluated code,
        # as one of torch's compiler does (Python 3.11, torch 2.13).
        return 128 + signal.SIGINT
    if cause is not None and cause.ending.was_ended and cause.ending.return_code in _ENDED_BY_US:
        return 1  # what Python would have ended with, had there been time
    return exit_code_for_shell(first.ending.return_code)


# How plainly a rank is the cause of what happened, from "it failed of itself" to "it was told to end".
_NAMED, _CAUSE, _WAS_FAILING, _WAS_ENDING, _LOST_A_PEER, _WAS_ENDED = range(6)
_NAMED_RANK = re.compile(r"\(rank (\d+): ")  # by the error of a checkpoint, on every rank
_ENDED_BY_US = (*(-each for each in known_signals("SIGTERM", "SIGKILL")), 128 + signal.SIGTERM)


def _weight(rank: RankEnding, exception: FoundException | None, named: Set[str]) -> int:
    if str(rank.rank) in named and exception is not None:
        return _NAMED
    has_lost_peer = exception is not None and exception.is_about_a_lost_peer
    if rank.ending.was_ended:
        # It may have ended with any code. One that is slow to end may have printed its exception long before; what
        # follows that may be more of its message, or show that it was handled.
        if exception is None and rank.ending.return_code not in (1, *_ENDED_BY_US):
            return _WAS_ENDING  # as by `sys.exit(5)`, while its exit handlers ran, so that others lost it
        if exception is None or has_lost_peer:
            return _WAS_ENDED
        if rank.ending.return_code in _ENDED_BY_US or not exception.ends_output:
            return _WAS_FAILING
    return _LOST_A_PEER if has_lost_peer else _CAUSE


def _outcome(rank: RankEnding, weight: int, *, first: RankEnding | None) -> RankOutcome:
    if rank.ending.return_code == 0:
        return "finished"
    if rank is first:
        return "failed first"
    return "died of it" if first is None or weight not in (_NAMED, _CAUSE) else "failed too"


def _rank_report(
    rank: RankEnding, outcome: RankOutcome, before_s: float, num_memory_kills: int
) -> RankReport:
    ending = rank.ending
    was_failing = outcome == "failed first" and ending.was_ended and ending.return_code in _ENDED_BY_US
    return RankReport(
        rank.rank,
        rank.host,
        outcome,
        ending.return_code,
        "was failing"
        if was_failing
        else describe_ending(ending.return_code, num_memory_kills=num_memory_kills),
        find_exception(ending.last_lines) if ending.return_code != 0 else None,
        ending.last_lines[-_NUM_LAST_LINES:],
        None if ending.failed_at is None else _moment(ending.failed_at),
        ending.return_code == 0 and (ending.ended_at or math.inf) < before_s,
    )


def _moment(monotonic_s: float) -> datetime:
    """Return what the clock on the wall said at a moment of `time.monotonic`."""
    return datetime.now(UTC) - timedelta(seconds=time.monotonic() - monotonic_s)
