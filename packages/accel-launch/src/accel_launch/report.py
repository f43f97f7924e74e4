"""How a run failed: the first cause, from the endings and last lines of its ranks, as text or JSON."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal

from accel_launch.messages import compact, complain
from accel_launch.processes.child import ChildEnding, describe_ending, exit_code_for_shell, signal_name
from accel_launch.processes.signals import known_signals
from accel_state.errors import ConfigError, LaunchError

if TYPE_CHECKING:
    from accel_launch.plan import LaunchPlan

_RANK_PREFIX = re.compile(r"^\[(?:rank)?\d+\]: ?")  # torch writes it before each line once ranks have met
_HEADER = "Traceback (most recent call last):"
_GROUP_HEADER, _GROUP_MARGIN = f"  + Exception Group {_HEADER}", "  | "
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*(?:\.<locals>\.[\w.]+)*)(?:: (?P<message>.*))?$")
_RUNPY = "<frozen runpy>"
_SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")
# Where code lives that the person did not write.
_FOREIGN = re.compile(r"/(?:site|dist)-packages/|/lib/python3[^/]*/|^<|/accel_\w+/|/src/accel/")

# What a rank says that lost another one: the cause is to be looked for there.
_LOST_PEER = re.compile(
    r"connection (?:was )?(?:closed|reset|refused)|broken pipe|remote process exited|lost connection"
    r"|ncclRemoteError|NCCL communicator was aborted|NCCL watchdog|socketProgress"
    r"|failed to recv, got 0 bytes|Timed out waiting .*ms for (?:recv|send)|heartbeat",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class FoundException:
    """An exception as its traceback tells it: in one's own code if any frame is, else where it was raised."""

    type: str
    message: str
    file: str | None = None
    line: int | None = None
    function: str | None = None
    ends_output: bool = field(default=True, compare=False)

    def describe(self) -> str:
        """Return ``ValueError: told to (train.py:9 in step)``."""
        told = f"{self.type}: {self.message}" if self.message else self.type
        if self.file is None:
            return told
        where = f"{self.file}:{self.line}"
        return (
            f"{told} ({where})"
            if self.function in (None, "<module>")
            else f"{told} ({where} in {self.function})"
        )

    @property
    def is_about_a_lost_peer(self) -> bool:
        """Whether it says that another rank had gone before."""
        return bool(_LOST_PEER.search(f"{self.type}: {self.message}"))


def find_exception(lines: Sequence[str], argv: Sequence[str] = ()) -> FoundException | None:
    """Return the exception whose traceback ends ``lines``, of a process that ran ``argv``; None if there is none."""
    plain = [_RANK_PREFIX.sub("", line) for line in lines]
    headers = [index for index, line in enumerate(plain) if line in (_HEADER, _GROUP_HEADER)]
    if not headers:
        return _syntax_error(plain)
    # A message may hold a traceback, as of a remote call; what ends the script begins with the frame of its module.
    # If it is that of another script, such as one that this script has run, the file tells them apart.
    first_frames = {index: _first_frame(plain, index) for index in headers}
    of_modules = [
        index for index, (file, function) in first_frames.items() if function == "<module>" or file == _RUNPY
    ]
    names = {PurePath(word).name for word in argv} | ({_RUNPY} if "-m" in argv else set())
    of_script = [index for index in of_modules if PurePath(first_frames[index][0]).name in names]
    header = (of_script or of_modules or headers)[-1]
    margin = _GROUP_MARGIN if plain[header] == _GROUP_HEADER else ""
    return _in_block([line.removeprefix(margin) for line in plain[header + 1 :]])


def _first_frame(lines: Sequence[str], header: int) -> tuple[str, str]:
    """Return the file and the function of the frame after a header; empty without one."""
    frames = (_FRAME.match(line.removeprefix(_GROUP_MARGIN)) for line in lines[header + 1 : header + 2])
    return next(((frame["file"], frame["function"] or "") for frame in frames if frame), ("", ""))


def _in_block(block: Sequence[str]) -> FoundException | None:
    end = next((i for i, line in enumerate(block) if line and not line[0].isspace()), None)
    match = _EXCEPTION.match(block[end]) if end is not None else None
    if match is None or end is None:
        return None
    return replace(_found(match, block[:end]), ends_output=not any(block[end + 1 :]))


def _syntax_error(lines: Sequence[str]) -> FoundException | None:
    """Find what Python says of a script that it cannot read; there is no traceback then."""
    for index in range(len(lines) - 1, 0, -1):
        match = _EXCEPTION.match(lines[index])
        if match is not None and match["type"] in _SYNTAX_ERRORS:
            return _found(match, lines[max(0, index - 4) : index])
    return None


def _found(exception: re.Match[str], block: Sequence[str]) -> FoundException:
    frames = [frame for frame in map(_FRAME.match, block) if frame is not None]
    own = [frame for frame in frames if not _FOREIGN.search(frame["file"])]
    kind, message = exception["type"], exception["message"] or ""
    if not frames:
        return FoundException(kind, message)
    frame = (own or frames)[-1]
    return FoundException(kind, message, frame["file"], int(frame["line"]), frame["function"])


Outcome = Literal["succeeded", "failed", "interrupted"]
RankOutcome = Literal["finished", "failed first", "failed too", "died of it"]

_NUM_LAST_LINES = 10


@dataclass(frozen=True, slots=True)
class RankReport:
    """How one rank ended. ``exception`` is the one whose traceback is among its last lines.

    ``failed_at`` is the moment at which it showed that it was failing, in UTC by the clock of this machine.
    ``had_ended`` tells that it finished before another rank failed, ``has_left`` that another failed because it waited
    for this one, whose script had ended.
    """

    ending: ChildEnding
    outcome: RankOutcome
    reason: str
    exception: FoundException | None
    failed_at: datetime | None
    had_ended: bool
    has_left: bool

    @property
    def rank(self) -> int:
        """Its number."""
        return self.ending.rank

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        parts, return_code = ("type", "message", "file", "line", "function"), self.ending.return_code
        return {
            "rank": self.rank,
            "host": self.ending.host,
            "outcome": self.outcome,
            "has_left": self.has_left,
            "exit_code": return_code if return_code >= 0 else None,
            "signal": signal_name(-return_code) if return_code < 0 else None,
            "reason": self.reason,
            "failed_at": self.failed_at and self.failed_at.isoformat(timespec="milliseconds"),
            "exception": self.exception and {part: getattr(self.exception, part) for part in parts},
            "last_lines": list(self.ending.last_lines[-_NUM_LAST_LINES:]),
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


def make_report(
    ranks: Sequence[ChildEnding],
    *,
    argv: Sequence[str] = (),
    num_ranks: int | None = None,
    interrupted_by: int | None = None,
    num_memory_kills: int = 0,
) -> RunReport:
    """Find the first cause among the endings of ranks.

    It is the rank whose failure showed first, but one that only complains of a lost peer comes after all
    others, however quick it was. Ranks that were asked to end, or that lost a peer, died of it.

    Args:
        ranks: The ranks of which the end is known.
        argv: What they ran.
        num_ranks: How many the run had; as many as ``ranks`` if None.
        interrupted_by: The signal that ended the run, if one did.
        num_memory_kills: How many processes the kernel killed meanwhile because memory ran out.
    """
    found = {rank.rank: find_exception(rank.last_lines, argv) for rank in ranks}
    named = {match[1] for each in found.values() if each and (match := _NAMED_RANK.search(each.message))}
    weights = {rank.rank: _weight(rank, found[rank.rank], named) for rank in ranks}
    failed = [rank for rank in ranks if rank.return_code != 0]
    first = min(failed, key=lambda rank: (weights[rank.rank], rank.failed_at or 0.0, rank.rank), default=None)
    was_stopped = interrupted_by is not None or (first is not None and first.return_code == -signal.SIGINT)
    outcome: Outcome = "interrupted" if was_stopped else "succeeded" if first is None else "failed"
    cause = None if was_stopped else first
    has_lost_peer = cause is not None and weights[cause.rank] == _LOST_A_PEER
    before_s = math.inf if has_lost_peer else (cause and cause.failed_at) or 0.0
    left = _ranks_left(cause.last_lines) if cause is not None and has_lost_peer else set()
    reports = []
    for rank in ranks:
        has_failed = rank.return_code != 0
        was_failing = rank is cause and rank.was_ended and rank.return_code in _ENDED_BY_US
        how = describe_ending(rank.return_code, num_memory_kills=num_memory_kills)
        report = RankReport(
            rank,
            _outcome(rank, weights[rank.rank], first=cause),
            "was failing" if was_failing else how,
            found[rank.rank] if has_failed else None,
            None if rank.failed_at is None else _moment(rank.failed_at),
            had_ended=not has_failed and (rank.ended_at or math.inf) < before_s,
            has_left=rank.rank in left or (has_lost_peer and not has_failed),
        )
        reports.append(report)
    return RunReport(
        outcome,
        _exit_code(first, cause, interrupted_by),
        tuple(reports),
        len(ranks) if num_ranks is None else num_ranks,
    )


def _exit_code(first: ChildEnding | None, cause: ChildEnding | None, interrupted_by: int | None) -> int:
    if first is None:
        return 0
    if interrupted_by == signal.SIGINT and first.return_code == 1:
        # After a `KeyboardInterrupt`, Python ends with 1 instead of by SIGINT if an exit handler has evaluated code,
        # as one of torch's compiler does (Python 3.11, torch 2.13).
        return 128 + signal.SIGINT
    if cause is not None and cause.was_ended and cause.return_code in _ENDED_BY_US:
        return 1  # what Python would have ended with, had there been time
    return exit_code_for_shell(first.return_code)


# How plainly a rank is the cause of what happened, from "it failed of itself" to "it was told to end".
_NAMED, _CAUSE, _WAS_FAILING, _WAS_ENDING, _LOST_A_PEER, _WAS_ENDED = range(6)
_NAMED_RANK = re.compile(r"\(rank (\d+): ")  # by the error of a checkpoint, on every rank
_LEFT_RANKS = re.compile(r"waited for .*, but ranks? (?P<ranks>\d+(?:, \d+)*) had left: ")
_ENDED_BY_US = (*(-each for each in known_signals("SIGTERM", "SIGKILL")), 128 + signal.SIGTERM)


def _weight(rank: ChildEnding, exception: FoundException | None, named: Set[str]) -> int:
    if str(rank.rank) in named and exception is not None:
        return _NAMED
    has_lost_peer = exception is not None and exception.is_about_a_lost_peer
    if rank.was_ended:
        # It may have ended with any code. One that is slow to end may have printed its exception long before; what
        # follows that may be more of its message, or show that it was handled.
        if exception is None and rank.return_code not in (1, *_ENDED_BY_US):
            return _WAS_ENDING  # as by `sys.exit(5)`, while its exit handlers ran, so that others lost it
        if exception is None or has_lost_peer:
            return _WAS_ENDED
        if rank.return_code in _ENDED_BY_US or not exception.ends_output:
            return _WAS_FAILING
    return _LOST_A_PEER if has_lost_peer else _CAUSE


def _outcome(rank: ChildEnding, weight: int, *, first: ChildEnding | None) -> RankOutcome:
    if rank.return_code == 0:
        return "finished"
    if rank is first:
        return "failed first"
    return "died of it" if first is None or weight not in (_NAMED, _CAUSE) else "failed too"


def _ranks_left(lines: Sequence[str]) -> set[int]:
    """Return the ranks of which accel's note on a lost rank says that their script had ended."""
    named = [match["ranks"] for line in lines for match in _LEFT_RANKS.finditer(line)]
    return {int(rank) for ranks in named for rank in ranks.split(", ")}


def _moment(monotonic_s: float) -> datetime:
    """Return what the clock on the wall said at a moment of `time.monotonic`."""
    return datetime.now(UTC) - timedelta(seconds=time.monotonic() - monotonic_s)


_NUM_SHOWN_LINES = 6
_NUM_SHOWN_CHARACTERS = 500  # of a message, and of each of these lines
_MARKS = " ^~"  # Python writes them under a line, to point at a part of it


def tell(plan: LaunchPlan, ranks: Sequence[ChildEnding], **options: Any) -> int:
    """Say what failed, if anything did, write the report that the plan asks for, and return the exit code of the run.

    ``options`` are those of `make_report`.
    """
    report = make_report(ranks, argv=plan.processes[0].argv, **options)
    if plan.report is not None:
        write_report(report, plan.report)
    if report.outcome == "failed" and not plan.is_quiet:
        complain(describe(report))
    return report.exit_code


def check_report_file(file: Path) -> None:
    """Make sure before a run that a report can be written after it.

    Raises:
        ConfigError: If its folder does not exist, or nobody may write there.
    """
    if not file.parent.is_dir():
        raise ConfigError(f"The folder of `--report {file}` does not exist. Make it first.")
    if not os.access(file.parent, os.W_OK) or file.is_dir():
        raise ConfigError(f"`--report` is `{file}`, which cannot be written. Name a file elsewhere.")


def describe(report: RunReport) -> str:
    """Return the report of a failure as text for the end of the screen.

    A run of one rank needs one sentence, since what the script wrote stands right above it.
    """
    first = report.first
    assert first is not None
    if report.num_ranks == 1:
        return f"The script {_how(first)}."
    where = f"Rank {first.rank} on {first.ending.host}"
    has_lost_peer = first.exception is not None and first.exception.is_about_a_lost_peer
    left = [rank for rank in report.ranks if rank.has_left]
    others = [rank for rank in report.ranks if rank is not first and not rank.has_left]
    lines = [f"{where} failed first: it {_how(first)}."]
    if left:
        who, whose = (
            (f"Rank {left[0].rank} on {left[0].ending.host}", "its")
            if len(left) == 1
            else (_named(left), "their")
        )
        lines = [
            f"{who} left first: {whose} script ended while rank {first.rank} waited.",
            f"  {where} {_how(first)}.",
        ]
    too: dict[str, list[RankReport]] = {}
    for rank in others:
        if rank.outcome == "failed too":
            too.setdefault(_how(rank), []).append(rank)
    lines += [f"  {_named(ranks)} {how}, too." for how, ranks in too.items()]
    had_ended = [rank for rank in others if rank.had_ended]
    lines += [f"  {_named(had_ended)} had ended with exit code 0 before."] if had_ended else []
    died = [rank for rank in others if rank.outcome == "died of it"]
    lines += [f"  {_named(died)} {'failed, too' if has_lost_peer else 'only died of it'}."] if died else []
    if has_lost_peer and not left:
        lines.append("  It lost a rank, or waited for one that made another call.")
    last_lines = [line for line in first.ending.last_lines[-_NUM_LAST_LINES:] if line.strip(_MARKS)]
    if last_lines:
        lines.append(f"  The last lines of rank {first.rank}:")
        lines += [f"    | {_beginning(line)}" for line in last_lines[-_NUM_SHOWN_LINES:]]
    return "\n".join(lines)


def write_report(report: RunReport, file: Path) -> None:
    """Write the report as JSON, whole or not at all.

    Raises:
        LaunchError: If the file cannot be written.
    """
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")
        beside.replace(file)
    except OSError as error:
        raise LaunchError(
            f"The report `{file}` cannot be written: {error.strerror}. Name a file elsewhere."
        ) from error


def _how(rank: RankReport) -> str:
    if rank.exception is None:
        return rank.reason
    exception = replace(rank.exception, message=_beginning(rank.exception.message))
    return f"{rank.reason}: {exception.describe()}"


def _beginning(text: str) -> str:
    return text if len(text) <= _NUM_SHOWN_CHARACTERS else f"{text[:_NUM_SHOWN_CHARACTERS]} …"


def _named(ranks: Sequence[RankReport]) -> str:
    numbers = [rank.rank for rank in ranks]
    return f"Rank {numbers[0]}" if len(numbers) == 1 else f"Ranks {compact(numbers)}"
