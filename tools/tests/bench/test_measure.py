import pytest

from tools.bench.case import Case
from tools.bench.measure import as_table, measure, run_variant


def test_variants_run_in_every_round_and_the_table_compares_medians_to_the_baseline():
    case = Case(
        title="a thing", unit="s", variants={"plain": "print(2)", "ours": "print(3)"}, baseline="plain"
    )
    plain, ours = measurements = measure(case, num_rounds=2)
    assert (plain.values, ours.values) == ([2, 2], [3, 3])
    assert as_table(case, measurements).splitlines()[-1].split() == ["ours", "3", "0.0%", "1.500"]


def test_a_variant_that_fails_is_an_error_with_its_output():
    with pytest.raises(RuntimeError, match="no such luck"):
        run_variant("raise SystemExit('no such luck')")
