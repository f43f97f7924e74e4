import pytest

from tools.gpu.results import STORED, TRIAL, append, merged, read
from tools.workspace import ROOT

OLD = [
    {"run": "1", "device": "A"},
    {"run": "1", "part": "fast", "case": "load", "row": "load 8 GB", "ok": False},
    {"run": "1", "part": "right", "row": "test_a", "ok": True},
]


@pytest.mark.parametrize(
    ("new", "rows"),
    [
        ([{"part": "fast", "case": "load", "row": "load 9 GB", "ok": True}], ["test_a", "load 9 GB"]),
        ([{"part": "right", "row": "test_a", "ok": False}], ["load 8 GB", "test_a"]),
        ([{"part": "fast", "case": "load", "row": "load", "ok": None}], ["load 8 GB", "test_a"]),
    ],
)
def test_a_new_row_replaces_the_old_of_its_name_or_case_if_it_was_measured(new, rows):
    found = merged(OLD, [{"run": "2", "device": "B"}, *({**row, "run": "2"} for row in new)])
    assert [row["row"] for row in found if "row" in row] == rows


def test_rows_of_a_trial_on_a_cpu_are_not_stored():
    assert merged(OLD, [{**row, "run": f"2{TRIAL}"} for row in OLD]) == OLD


def test_runs_stay_as_long_as_a_row_names_them():
    rows = [{"run": "2", "device": "B"}, *({**row, "run": "2"} for row in OLD[1:])]
    assert [row["run"] for row in merged(OLD, rows) if "device" in row] == ["2"]


def test_rows_are_read_as_they_were_written(tmp_path):
    assert read(tmp_path / "rows.jsonl") == []
    append(tmp_path / "rows.jsonl", OLD[:1])
    append(tmp_path / "rows.jsonl", OLD[1:])
    assert read(tmp_path / "rows.jsonl") == OLD


def test_every_stored_row_names_a_run_that_is_described():
    rows = read(ROOT / STORED)
    described = {row["run"] for row in rows if "device" in row}
    assert {row["run"] for row in rows if "row" in row} == described


def test_of_the_plain_suite_folders_are_counted():
    tests = [("packages/a/tests/test_x.py::one", True), ("packages/a/tests/test_y.py::two", False)]
    rows = [{"run": "2", "part": "suite", "case": name, "row": name, "ok": ok} for name, ok in tests]
    stored = merged(OLD, [{"run": "2", "device": "B"}, *rows])[-1]
    assert (stored["row"], stored["num_right"], stored["why"]) == ("packages/a", 1, tests[1][0])
