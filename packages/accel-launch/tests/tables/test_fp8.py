from __future__ import annotations

import pytest

from accel_launch.tables.fp8 import three_booleans


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("false", (False, False, False)),
        ("true", (True, True, True)),
        ("true,false,true", (True, False, True)),
        ("[True, False, False]", (True, False, False)),
        ("(no, no, yes)", (False, False, True)),
    ],
)
def test_one_word_stands_for_all_three(text, values):
    assert three_booleans(text) == values


@pytest.mark.parametrize("text", ["true,false", "true,false,true,false", "perhaps", ""])
def test_other_numbers_of_words_are_refused(text):
    with pytest.raises(ValueError):
        three_booleans(text)
