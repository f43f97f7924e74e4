import pytest

from tools.bench.measure import Case, as_table, measure, run_variant


def test_variants_run_in_every_round_and_the_table_compares_medians_to_the_baseline():
    case = Case("a thing", "s", {"plain": "print(2)", "ours": "print(3)"})
    numbers = measure(case, num_rounds=2)
    assert numbers == {"plain": [2, 2], "ours": [3, 3]}
    assert as_table(case, numbers).splitlines()[-1].split() == [
        "ours",
        "3",
        "(3",
        "to",
        "3),",
        "1.500",
        "of",
        "plain",
    ]


def test_a_variant_that_fails_is_an_error_with_its_output():
    with pytest.raises(RuntimeError, match="no such luck"):
        run_variant("raise SystemExit('no such luck')")
