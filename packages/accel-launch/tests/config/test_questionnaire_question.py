from __future__ import annotations

from collections.abc import Sequence

import pytest

from accel_launch.config.questionnaire import Question, answered, both, of_setting, yes_no
from accel_state.environment.parsers import choice, count


class ScriptedAsker:
    """Answers from a list; keeps what was said."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.heard: list[str] = []

    def text(self, question: str, *, default: str) -> str:
        self.heard.append(question)
        return self.answers.pop(0) or default

    def choice(self, question: str, labels: Sequence[str], *, default: int) -> int:
        self.heard.append(f"{question} {'|'.join(labels)}")
        given = self.answers.pop(0)
        return labels.index(given) if given else default

    def say(self, line: str) -> None:
        self.heard.append(line)


def test_an_empty_answer_is_the_default_and_a_wrong_one_is_asked_again():
    asker = ScriptedAsker("none", "0", "")
    assert Question("num_machines", "How many?", count, 3).ask(asker, {}) == 3
    assert asker.heard == [
        "How many?",
        "`none` cannot be used: it must be a whole number of at least 1.",
        "How many?",
        "`0` cannot be used: it must be a whole number of at least 1.",
        "How many?",
    ]


def test_a_choice_shows_labels_and_gives_values():
    question = Question("k", "Which?", choice("A", "B"), "B", labels={"A": "first", "B": "second"})
    assert question.ask(ScriptedAsker(""), {}) == "B"
    asker = ScriptedAsker("first")
    assert question.ask(asker, {}) == "A"
    assert asker.heard == ["Which? first|second"]


@pytest.mark.parametrize(("typed", "value"), [("yes", True), ("n", False), ("", True)])
def test_yes_and_no(typed, value):
    assert yes_no("k", "Sure?", default=True).ask(ScriptedAsker(typed), {}) is value


def test_the_default_may_follow_from_earlier_answers():
    question = Question("k", "Which port?", count, lambda answers: answers["n"] * 2)
    assert question.ask(ScriptedAsker(""), {"n": 4}) == 8


def test_a_setting_brings_its_words_choices_and_default():
    question = of_setting("mixed_precision")
    assert (question.key, question.choices(), question.default) == (
        "mixed_precision",
        ("no", "fp16", "bf16", "fp8"),
        "no",
    )
    assert question.text == "Precision of the forward pass"


def test_conditions():
    assert answered("a")({"a": True})
    assert not answered("a")({})
    assert answered("a", 2, 3)({"a": 3})
    assert both(answered("a"), answered("b"))({"a": True, "b": True})
    assert not both(answered("a"), answered("b"))({"a": True})
