import argparse
import os
import sys

import pytest

from tools.commands.gpu import command
from tools.gpu.driver import CASES, Driver
from tools.gpu.results import append, read


@pytest.fixture
def call(tmp_path):
    """Make a call of the command, with the same file of rows, and return its exit code and the rows."""

    def run(part, *words):
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        out = tmp_path / "rows.jsonl"
        common = ["--device", "cpu", "--small", "--commit", "abc", "--out", str(out), "--part", part]
        outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        driver = Driver(sys.executable, outside | {"PYTHONPATH": "."}, parser.parse_args([*words, *common]))
        return driver.run_part(part), read(out)

    return run


@pytest.mark.slow
def test_a_speed_case_puts_rows_and_is_not_run_again(call):
    num_wrong, rows = call("fast", "step")
    assert num_wrong == 0
    assert [row["device"] for row in rows[:1]] == ["CPU"]
    assert all(row["ok"] and {"plain", "accel"} <= row["figures"].keys() for row in rows[1:])
    assert len(rows) > 5
    assert call("fast", "step") == (0, rows)


@pytest.mark.slow
def test_each_test_puts_a_row_unless_it_has_one_of_this_run(call, tmp_path):
    file = tmp_path / "test_some.py"
    file.write_text("def test_done(): assert False\ndef test_right(): pass\ndef test_wrong(): assert False\n")
    _, rows = call("fast", "no such case")
    done = {
        **rows[0],
        "part": "suite",
        "case": "",
        "row": "test_some.py::test_done",
        "ok": True,
    }
    append(tmp_path / "rows.jsonl", [done])
    num_wrong, rows = call("suite", str(file))
    states = {row["row"].partition("::")[2]: row["ok"] for row in rows[2:]}
    assert (num_wrong, states) == (1, {"test_right": True, "test_wrong": False})


def test_nothing_is_begun_after_the_limit_and_it_is_said(call, capsys):
    num_wrong, rows = call("fast", "--limit_s", "0")
    assert (num_wrong, [row for row in rows if "row" in row]) == (0, [])
    said = capsys.readouterr().err
    assert all(f"not reached: {name}." in said for name in CASES)
