from __future__ import annotations

import pytest

from accel_state.environment import parsers


@pytest.mark.parametrize("word", ["1", "true", "True", "YES", "y", "t", " on "])
def test_boolean_takes_words_for_true(word):
    assert parsers.boolean(word) is True


@pytest.mark.parametrize("word", ["0", "false", "False", "NO", "n", "f", " off "])
def test_boolean_takes_words_for_false(word):
    assert parsers.boolean(word) is False


@pytest.mark.parametrize(
    ("parser", "given", "value"),
    [
        (parsers.integer, "-3", -3),
        (parsers.count, "1", 1),
        (parsers.index, "0", 0),
        (parsers.number, "0.5", 0.5),
        (parsers.duration, "0.5", 0.5),
        (parsers.port, "65535", 65535),
        (parsers.text, "as it is", "as it is"),
        (parsers.host, "$(MASTER_ADDR) ", "$(MASTER_ADDR)"),
        (parsers.names, "BertLayer, GPT2Block,", ("BertLayer", "GPT2Block")),
        (parsers.choice("no", "bf16"), "BF16", "bf16"),
        (parsers.digit(1, 2), " 2 ", 2),
        (parsers.numbered("FULL", "NONE"), "2", "NONE"),
        (parsers.numbered("FULL", "NONE"), "full", "FULL"),
        (parsers.either(parsers.choice("A"), parsers.boolean), "a", "A"),
        (parsers.either(parsers.choice("A"), parsers.boolean), "true", True),
        (parsers.unless("auto", parsers.count, None), "Auto", None),
        (parsers.unless("auto", parsers.count, None), "4", 4),
    ],
)
def test_accepted_text_becomes_its_value(parser, given, value):
    assert parser(given) == value


@pytest.mark.parametrize(
    ("parser", "given"),
    [
        (parsers.boolean, "maybe"),
        (parsers.boolean, "2"),
        (parsers.integer, "1.5"),
        (parsers.count, "0"),
        (parsers.index, "-1"),
        (parsers.number, "a"),
        (parsers.duration, "-1"),
        (parsers.duration, "nan"),
        (parsers.duration, "inf"),
        (parsers.port, "65536"),
        (parsers.host, "10.0.0.1\nRAN"),
        (parsers.port, "-1"),
        (parsers.choice("no", "bf16"), "fp15"),
        (parsers.digit(1, 2), "3"),
        (parsers.numbered("FULL", "NONE"), "3"),
        (parsers.numbered("FULL", "NONE"), "0"),
        (parsers.either(parsers.choice("A"), parsers.boolean), "b"),
        (parsers.unless("auto", parsers.count, None), "none"),
    ],
)
def test_other_text_is_refused(parser, given):
    with pytest.raises((ValueError, KeyError)):
        parser(given)


def test_a_parser_names_what_it_accepts():
    assert parsers.choice("no", "bf16").accepts == "one of: no, bf16"
    assert parsers.choice("no", "bf16").choices == ("no", "bf16")
    assert parsers.unless("auto", parsers.count, None).accepts == "a whole number of at least 1, or `auto`"
    assert parsers.either(parsers.digit(1), parsers.number).accepts == "one of: 1, or a number"
