"""Scripts see with accel what they see with Accelerate, but for what the page says: a sample of random ones."""

import re

import pytest
import random_configurations as configurations
from documented import DOCS

SAMPLE = {1: range(20), 2: range(8), 3: range(4)}
"""How many configurations are run, by the number of processes."""
PAGE = (DOCS / "start" / "from_accelerate.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)


@pytest.mark.slow
def test_scripts_see_what_they_see_with_accelerate():
    wrong = []
    for ranks, seeds in SAMPLE.items():
        outcomes, differing = configurations.compare(seeds, ranks=ranks)
        assert not outcomes["errors alike"] or outcomes["errors alike"] < len(seeds) / 4
        wrong += differing
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("meant", configurations.MEANT, ids=lambda meant: meant.reason)
def test_the_page_has_the_section_that_a_rule_names(meant):
    assert meant.section in HEADINGS


def test_a_configuration_follows_from_its_seed():
    assert configurations.configuration(3, ranks=2) == configurations.configuration(3, ranks=2)
    assert configurations.configuration(3, ranks=2) != configurations.configuration(4, ranks=2)


def test_a_difference_without_a_rule_is_reported():
    settings = configurations.DEFAULTS
    left, used = configurations.unexplained(settings, [{"weights": [1.0]}], [{"weights": [2.0]}])
    assert (left, used) == ({"weights"}, [])


def test_an_error_of_accel_alone_is_no_difference_that_is_meant():
    seen = {"length": [3], "flags": [], "remainders": []}
    for meant in configurations.MEANT:
        case = configurations.Case(
            settings={**configurations.DEFAULTS, "split_argument": False},
            theirs=[dict(seen)],
            ours=[{**seen, "error": ["ValueError"], "message": ["ValueError: no"]}],
        )
        assert "error" not in meant.explains(case), meant.reason
