from tools.commands.check import Outcome, table


def test_the_table_names_what_failed():
    outcomes = [Outcome("lint", 0.5, True, ""), Outcome("layers", 2.25, False, "broken")]
    assert table(outcomes).splitlines() == [
        "  lint       0.5 s  ok",
        "  layers     2.2 s  FAILED",
        "1 of 2 checks failed: layers",
    ]


def test_the_table_says_when_all_is_well():
    assert table([Outcome("lint", 0.5, True, "")]).endswith("all checks passed")
