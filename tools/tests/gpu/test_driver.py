import argparse
import os
import sys

import pytest

from tools.gpu import command as gpu
from tools.gpu.results import read


@pytest.fixture
def call(tmp_path):
    """Call the command, with the same file of rows, and return its exit code and the rows."""

    def run(part, *words):
        parser = argparse.ArgumentParser()
        gpu.add_arguments(parser.add_argument)
        out = tmp_path / "rows.jsonl"
        common = ["--device", "cpu", "--small", "--commit", "abc", "--out", str(out), "--part", part]
        outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        code = gpu.run_parts(parser.parse_args([*words, *common]), sys.executable, outside)
        return code, read(out)

    return run


@pytest.mark.slow
def test_a_speed_case_puts_rows_within_the_limit_and_is_not_run_again(call, capsys):
    code, rows = call("fast", "--limit_s", "0")
    assert (code, [row for row in rows if "row" in row]) == (0, [])
    said = capsys.readouterr().err
    assert all(f"not reached: {name}." in said for names in gpu.CASES.values() for name in names)
    code, rows = call("fast", "step")
    assert code == 0
    assert [row["device"] for row in rows[:1]] == ["CPU"]
    assert all(row["ok"] and {"plain", "accel"} <= row["figures"].keys() for row in rows[1:])
    assert len(rows) > 5
    assert call("fast", "step") == (0, rows)


@pytest.mark.slow
def test_each_test_puts_a_row_unless_it_has_one_of_this_run(call, tmp_path):
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = -p no:hydra_pytest -p no:anyio\n"
    )  # slow, unused
    file = tmp_path / "test_some.py"
    file.write_text("def test_done(): pass\n")
    assert call("suite", str(file))[0] == 0
    file.write_text("def test_done(): assert False\ndef test_right(): pass\ndef test_wrong(): assert False\n")
    code, rows = call("suite", str(file))
    states = {row["row"].rpartition("::")[2]: row["ok"] for row in rows if "row" in row}
    assert (code, states) == (1, {"test_done": True, "test_right": True, "test_wrong": False})
