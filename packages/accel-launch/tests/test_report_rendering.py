from __future__ import annotations

import json
from pathlib import Path

import pytest

from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_launch.processes.child import ChildEnding
from accel_launch.report import check_report_file, compact, describe, make_report, tell
from accel_state.errors import ConfigError, LaunchError


def report(*return_codes: int, last_lines: tuple[str, ...] = ()):
    endings = [
        ChildEnding(code, float(rank) if code else None, False, last_lines, rank=rank, host=f"node{rank}")
        for rank, code in enumerate(return_codes)
    ]
    return make_report(endings)


def plan(file: Path) -> LaunchPlan:
    return LaunchPlan("single", (ProcessPlan(("true",), file.parent),), 1, is_quiet=True, report=file)


@pytest.mark.parametrize(
    ("numbers", "text"), [([0], "0"), ([3, 1, 2], "1-3"), ([0, 1, 2, 5, 7, 8], "0-2, 5, 7-8")]
)
def test_ranks_in_a_row_are_shortened(numbers, text):
    assert compact(numbers) == text


def test_only_the_last_lines_are_shown():
    told = describe(report(0, 3, last_lines=tuple(f"line {number}" for number in range(50))))
    assert told.splitlines() == [
        "Rank 1 on node1 failed first: it ended with exit code 3.",
        "  The last lines of rank 1:",
        *(f"    | line {number}" for number in range(44, 50)),
    ]


def test_lines_that_only_point_at_others_take_no_place():
    told = describe(report(0, 3, last_lines=("Traceback", "    f(x)", "    ~^^^", "E: no")))
    assert [line.removeprefix("    | ") for line in told.splitlines()[2:]] == [
        "Traceback",
        "    f(x)",
        "E: no",
    ]


def test_a_quiet_run_writes_its_report_but_prints_nothing(tmp_path: Path, capsys):
    assert tell(plan(tmp_path / "r.json"), [ChildEnding(3, 1.0)]) == 3
    assert capsys.readouterr().err == ""
    assert json.loads((tmp_path / "r.json").read_text())["exit_code"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_a_report_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(LaunchError, match="cannot be written: No such file or directory"):
        tell(plan(tmp_path / "missing" / "r.json"), [ChildEnding(0)])


def test_a_report_that_could_not_be_written_is_refused_before_the_run(tmp_path):
    check_report_file(tmp_path / "r.json")
    with pytest.raises(ConfigError, match=r"The folder of `--report /.*/no/r\.json` does not exist"):
        check_report_file(tmp_path / "no" / "r.json")
    with pytest.raises(ConfigError, match=r"`--report` is `/.*`, which cannot be written"):
        check_report_file(tmp_path)


def test_ranks_that_all_lost_each_other_blame_none():
    lost = (
        "Traceback (most recent call last):",
        "RuntimeError: Timed out waiting 20000ms for recv operation",
    )
    told = describe(report(1, 1, last_lines=lost))
    assert "  Rank 1 failed, too." in told.splitlines()
    assert "  It lost a rank, or waited for one that made another call." in told.splitlines()


LOST_PEER = (
    "Traceback (most recent call last):",
    '  File "train.py", line 9, in <module>',
    "RuntimeError: Connection closed by peer",
)


@pytest.mark.parametrize(
    ("note", "codes", "left", "others"),
    [
        ("but rank 1 had left: the script had ended there", (1, -15, 1), "Rank 1 on node1", "Rank 2"),
        ("but ranks 1, 2 had left: the script had ended there", (1, -15, 0), "Ranks 1-2", None),
        ("and still did", (1, 0, 1), "Rank 1 on node1", "Rank 2"),
    ],
)
def test_the_ranks_that_left_are_named_first(note, codes, left, others):
    lost = (*LOST_PEER, f"This rank was in `backward`, and waited for the other ranks to call it too, {note}")
    lines_of = [lost, (), lost]
    endings = [
        ChildEnding(code, float(rank) if code else None, code < 0, lines, rank=rank, host=f"node{rank}")
        for rank, (code, lines) in enumerate(zip(codes, lines_of, strict=True))
    ]
    told = describe(make_report(endings)).splitlines()
    assert told[0].startswith(f"{left} left first: ")
    assert told[0].endswith("ended while rank 0 waited.")
    assert told[1].startswith("  Rank 0 on node0 ended with exit code 1: RuntimeError: Connection closed")
    assert [line for line in told if line.endswith(("failed, too.", "too."))] == (
        [] if others is None else [f"  {others} failed, too."]
    )
