"""The losses of two sides are compared by name and place."""

from __future__ import annotations

import pytest

from tools.bench.libraries import NAMES, SCRIPTS, largest_difference


def test_the_largest_difference_is_told_with_its_name():
    ours, theirs = {"a": [1.0, 2.0], "b": [3.0]}, {"a": [1.0, 2.5], "b": [3.25]}
    assert largest_difference(ours, theirs) == (0.5, "a")


@pytest.mark.parametrize("theirs", [{"a": [1.0]}, {"a": [1.0, 2.0], "b": [1.0]}])
def test_losses_that_do_not_belong_together_are_refused(theirs):
    with pytest.raises(ValueError, match="another number"):
        largest_difference({"a": [1.0, 2.0]}, theirs)


def test_the_scripts_are_there():
    assert set(NAMES) <= {file.stem for file in SCRIPTS.glob("*.py")}
