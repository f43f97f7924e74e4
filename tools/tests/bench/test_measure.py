import pytest

from tools.bench.case import Case
from tools.bench.measure import Measurement, as_table, measure, run_variant

CASE = Case(title="a thing", unit="s", variants={"plain": "print(2)", "ours": "print(3)"}, baseline="plain")


def test_a_variant_gives_the_number_it_prints_last_or_its_time(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert run_variant("print(9); import sys; print(int(sys.dont_write_bytecode))") == 0
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
