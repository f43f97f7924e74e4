from dataclasses import replace

import pytest

from tools.bench.case import Case
from tools.bench.measure import Measurement, as_data, as_table, measure, obstacle_to, run_variant

CASE = Case(title="a thing", unit="s", variants={"plain": "print(2)", "ours": "print(3)"}, baseline="plain")


def test_a_variant_gives_the_number_it_prints_last():
    assert run_variant("print('warming up'); print(1.5)") == 1.5


def test_a_silent_variant_is_timed_as_a_whole():
    assert 0 < run_variant("pass") < 60


def test_a_variant_that_fails_is_an_error_with_its_output():
    with pytest.raises(RuntimeError, match="no such luck"):
        run_variant("raise SystemExit('no such luck')")


def test_each_variant_runs_in_every_round():
    plain, ours = measure(CASE, num_rounds=3)
    assert (plain.values, ours.values) == ([2, 2, 2], [3, 3, 3])


def test_the_table_compares_medians_to_the_baseline():
    text = as_table(CASE, [Measurement("plain", [2, 2, 8]), Measurement("ours", [3, 3, 3])])
    assert text.splitlines()[-1].split() == ["ours", "3", "0.0%", "1.500"]


def test_the_data_keeps_every_number():
    data = as_data(CASE, [Measurement("plain", [2.0]), Measurement("ours", [3.0])])
    assert data["results"][1] == {"variant": "ours", "values": [3.0], "median": 3.0, "spread": 0.0}


def test_a_case_tells_why_it_cannot_be_measured_here():
    assert obstacle_to(CASE) == ""
    assert obstacle_to(replace(CASE, obstacle="print('no GPU here')")) == "no GPU here"
    assert obstacle_to(replace(CASE, obstacle="print('')")) == ""


def test_a_variant_that_measures_nothing_has_no_spread():
    assert Measurement("disk", [0.0, 0.0, 0.0]).spread == 0.0


def test_variants_may_keep_their_bytecode_as_installed_packages_do(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert run_variant("import sys; print(int(sys.dont_write_bytecode))") == 0
