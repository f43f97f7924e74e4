"""A report as a few lines for the screen, or as a JSON file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from accel_launch.messages import compact, complain
from accel_launch.reports.run_report import RankReport, RunReport
from accel_state.errors import ConfigError, LaunchError

_NUM_SHOWN_LINES = 6
_MARKS = " ^~"  # Python writes them under a line, to point at a part of it


def tell(report: RunReport, *, is_quiet: bool = False, file: Path | None = None) -> int:
    """Say what failed, if anything did, write the report to ``file``, and return the exit code of the run."""
    if file is not None:
        write_report(report, file)
    if report.outcome == "failed" and not is_quiet:
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
    has_lost_peer = first.exception is not None and first.exception.is_about_a_lost_peer
    lines = [f"Rank {first.rank} on {first.host} failed first: it {_how(first)}."]
    others = [rank for rank in report.ranks if rank is not first]
    too: dict[str, list[int]] = {}
    for rank in others:
        if rank.outcome == "failed too":
            too.setdefault(_how(rank), []).append(rank.rank)
    lines += [f"  {_ranks(numbers)} {how}, too." for how, numbers in too.items()]
    had_ended = [rank.rank for rank in others if rank.had_ended]
    if had_ended:
        lines.append(f"  {_ranks(had_ended)} had ended with exit code 0 before.")
    died = [rank.rank for rank in others if rank.outcome == "died of it"]
    if died:
        lines.append(f"  {_ranks(died)} {'failed, too' if has_lost_peer else 'only died of it'}.")
    if has_lost_peer and not had_ended:
        lines.append("  It lost a rank, or waited for one that made another call.")
    last_lines = [line for line in first.last_lines if line.strip(_MARKS)]
    if last_lines:
        lines.append(f"  The last lines of rank {first.rank}:")
        lines += [f"    | {line}" for line in last_lines[-_NUM_SHOWN_LINES:]]
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
    return rank.reason if rank.exception is None else f"{rank.reason}: {rank.exception.describe()}"


def _ranks(numbers: Sequence[int]) -> str:
    return f"Rank {numbers[0]}" if len(numbers) == 1 else f"Ranks {compact(numbers)}"
