import os
import sys
from dataclasses import replace

import pytest

from tools.gpu.case import CASES
from tools.gpu.driver import Driver
from tools.gpu.results import read


@pytest.fixture
def driver(tmp_path):
    environ = {**os.environ, "PYTHONPATH": "."}
    return Driver(sys.executable, environ, tmp_path / "rows.jsonl", "cpu", True, "abc", 600, ["step"])


@pytest.mark.slow
def test_a_part_puts_rows_and_what_an_earlier_call_has_put_is_not_run_again(driver, capsys):
    assert driver.run_part("fast") == 0
    rows = read(driver.out)
    assert [row["device"] for row in rows[:1]] == ["CPU"]
    assert all(row["ok"] and {"plain", "accel"} <= row["figures"].keys() for row in rows[1:])
    assert len(rows) > 5
    assert replace(driver).run_part("fast") == 0
    assert read(driver.out) == rows


def test_nothing_is_begun_after_the_limit_and_it_is_said(driver, capsys):
    driver.limit_s, driver.only = 0, []
    assert driver.run_part("fast") == 0
    assert [row for row in read(driver.out) if "row" in row] == []
    said = capsys.readouterr().err
    assert all(f"not reached: {name}." in said for name in CASES)
