from __future__ import annotations

import pytest

from accel_launch.tables import parsers


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
    ],
)
def test_other_text_is_refused(parser, text):
    with pytest.raises(ValueError):
        parser(text)
