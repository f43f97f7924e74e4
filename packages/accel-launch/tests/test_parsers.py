from __future__ import annotations

import pytest

from accel_launch import parsers


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (parsers.tee, "3"),
        (parsers.tee, "0:3,1:0"),
        (parsers.pairs, "timeout=9,x=a=b"),
        (parsers.shell_words, "-p 2222 -i 'my key'"),
    ],
)
def test_what_is_accepted_stays_as_it_is(parser, text):
    assert parser(text) == text


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (parsers.tee, "4"),
        (parsers.tee, "0:3,"),
        (parsers.pairs, "timeout"),
        (parsers.pairs, "timeout="),
        (parsers.pairs, ""),
        (parsers.shell_words, "-i 'my key"),
        (parsers.ranks, "3-1"),
        (parsers.ranks, "0-99999999999"),
        (parsers.ranks, "-1"),
    ],
)
def test_other_text_is_refused(parser, text):
    with pytest.raises(ValueError):
        parser(text)


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
def test_one_word_means_all_three(text, values):
    assert parsers.three_booleans(text) == values


@pytest.mark.parametrize("text", ["true,false", "true,false,true,false", "perhaps", ""])
def test_other_numbers_of_words_are_refused(text):
    with pytest.raises(ValueError):
        parsers.three_booleans(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A=1", ("A=1",)),
        ("A=1,B=2", ("A=1", "B=2")),
        ("A=1,2", ("A=1,2",)),
        ("A,B=2", ("A", "B=2")),
        ("A=x,y", ("A=x,y",)),  # in one flag it belongs to the value
        ("A=x\ny", ("A=x", "y")),
        ("A=x=y", ("A=x=y",)),
        ("", ()),
    ],
)
def test_assignments_are_apart_by_commas_and_by_flags(text, found):
    assert parsers.assignments(text) == found


@pytest.mark.parametrize("text", ["1A=x", "A B", "=x", "A-B=1"])
def test_what_cannot_be_a_variable_is_refused(text):
    with pytest.raises(ValueError):
        parsers.assignments(text)
