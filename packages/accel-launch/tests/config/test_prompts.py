from __future__ import annotations

import io

import pytest

from accel_launch.config.prompts import Asker, make_asker, place_of
from accel_state.errors import ConfigError


@pytest.fixture
def typed(monkeypatch):
    def type_in(text: str) -> Asker:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        return Asker()

    return type_in


@pytest.mark.parametrize(
    ("given", "place"), [("fp16", 1), ("FP16", 1), ("1", 1), ("0", 0), ("3", None), ("-1", None), ("x", None)]
)
def test_a_choice_is_meant_by_its_words_or_its_number(given, place):
    assert place_of(given, ["no", "fp16", "bf16"]) == place


def test_words_come_before_numbers():
    assert place_of("1", ["1", "2"]) == 0
    assert place_of("2", ["1", "2"]) == 1


def test_a_wrong_choice_is_asked_again_with_the_nearest_name(typed, capsys):
    assert typed("bf61\n\n").choice("Which?", ["no", "bf16"], default=1) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("Which?\n  0  no\n  1  bf16\n")
    assert "`bf61` is none of these. Did you mean `bf16`?" in shown


def test_an_empty_line_is_the_default(typed):
    assert typed("\n").text("Name", default="x") == "x"
    assert typed(" y \n").text("Name", default="x") == "y"


def test_the_end_of_the_input_is_reported_with_the_open_question(typed):
    with pytest.raises(ConfigError, match="The input ended before there was an answer to: Name"):
        typed("").text("Name", default="x")


def test_the_end_of_the_input_in_a_list_is_reported_with_its_question(typed):
    with pytest.raises(ConfigError, match="before there was an answer to: Which number format"):
        typed("").choice("Which number format?", ["no", "bf16"], default=0)


def test_a_closed_input_is_one_that_has_ended(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(ConfigError, match="The input ended before there was an answer to: Name"):
        make_asker({"TERM": "xterm"}).text("Name", default="x")


def test_what_is_piped_is_asked_plainly(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert type(make_asker({"TERM": "xterm"})) is Asker
