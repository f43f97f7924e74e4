import pytest

from tools.gpu.results import STORED, TRIAL, append, merged, read

OLD = [
    {"run": "1", "device": "A"},
    {"run": "1", "part": "fast", "case": "load", "row": "load 8 GB", "ok": False},
    {"run": "1", "part": "right", "row": "packages/a", "ok": True},
]


@pytest.mark.parametrize(
    ("new", "rows"),
    [
        ([{"part": "fast", "case": "load", "row": "load 9 GB", "ok": True}], ["packages/a", "load 9 GB"]),
        (
            [{"part": "right", "row": "packages/a/x.py::y", "ok": False, "why": ""}],
            ["load 8 GB", "packages/a"],
        ),
        ([{"part": "fast", "case": "load", "row": "load", "ok": None}], ["load 8 GB", "packages/a"]),
    ],
)
def test_a_new_row_replaces_the_old_of_its_case_or_folder_if_it_was_measured(new, rows):
    found = merged(OLD, [{"run": "2", "device": "B"}, *({**row, "run": "2"} for row in new)])
    assert [row["row"] for row in found if "row" in row] == rows


def test_rows_of_a_trial_on_a_cpu_are_not_stored():
    assert merged(OLD, [{**row, "run": f"2{TRIAL}"} for row in OLD]) == OLD


def test_runs_stay_as_long_as_a_row_names_them():
    rows = [{"run": "2", "device": "B"}, *({**row, "run": "2", "why": ""} for row in OLD[1:])]
    assert [row["run"] for row in merged(OLD, rows) if "device" in row] == ["2"]


def test_rows_are_read_as_they_were_written(tmp_path):
    assert read(tmp_path / "rows.jsonl") == []
    append(tmp_path / "rows.jsonl", OLD[0])
    append(tmp_path / "rows.jsonl", *OLD[1:])
    assert read(tmp_path / "rows.jsonl") == OLD


def test_every_stored_row_names_a_run_that_is_described():
    rows = read(STORED)
    described = {row["run"] for row in rows if "device" in row}
    assert {row["run"] for row in rows if "row" in row} == described


def test_the_tests_of_a_folder_are_counted():
    tests = [("packages/a/tests/test_x.py::one", True), ("packages/a/tests/test_y.py::two", False)]
    rows = [{"run": "2", "part": "suite", "row": name, "ok": ok, "why": "it broke"} for name, ok in tests]
    stored = merged(OLD, [{"run": "2", "device": "B"}, *rows])[-1]
    assert (stored["row"], stored["right"], stored["wrong"]) == ("packages/a", 1, 1)
    assert (stored["failed"], stored["why"]) == ([tests[1][0]], "it broke")
