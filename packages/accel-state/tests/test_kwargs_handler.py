"""Kwargs handlers, and the one for the process group."""

import os
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from accel_state.environment import read
from accel_state.errors import ConfigError
from accel_state.kwargs_handler import InitProcessGroupKwargs, KwargsHandler


@dataclass
class Sample(KwargsHandler):
    number: int = 1
    items: list = field(default_factory=list)


def test_only_what_differs_from_the_defaults_is_passed_on():
    assert Sample().to_kwargs() == {}
    assert Sample(number=2).to_kwargs() == {"number": 2}
    assert Sample(items=[1]).to_dict() == {"number": 1, "items": [1]}


def test_result_is_a_copy():
    sample = Sample(items=[[1]])
    sample.to_dict()["items"][0].append(2)
    assert sample.items == [[1]]


@dataclass
class FromVariable(KwargsHandler):
    level: str | None = None

    def __post_init__(self):
        self.level = read("log_level") if self.level is None else self.level


def test_what_came_from_a_variable_differs_from_the_default(monkeypatch):
    assert FromVariable().to_kwargs() == {}
    monkeypatch.setenv("ACCELERATE_LOG_LEVEL", "DEBUG")
    assert FromVariable().to_kwargs() == {"level": "DEBUG"}
    assert FromVariable(level="INFO").to_kwargs() == {"level": "INFO"}
    assert read("log_level") == "DEBUG"


def test_default_backend_is_no_wish():
    assert InitProcessGroupKwargs().to_kwargs() == {}
    handler = InitProcessGroupKwargs(backend="gloo", timeout=timedelta(seconds=9))
    assert handler.to_kwargs() == {"backend": "gloo", "timeout": timedelta(seconds=9)}


@pytest.mark.parametrize(
    ("timeout", "message"),
    [
        (30, "must be a `datetime.timedelta`, got 30"),
        (timedelta(0), "must be longer than nothing, got 0:00:00"),
    ],
)
def test_timeout_that_is_none_is_refused(timeout, message):
    with pytest.raises(ConfigError, match=message):
        InitProcessGroupKwargs(timeout=timeout)


@dataclass
class OfTheUser(KwargsHandler):
    level: str | None = field(default_factory=lambda: os.environ.get("MY_LEVEL"))


def test_a_default_that_a_user_reads_from_the_environment_is_passed_on(monkeypatch):
    monkeypatch.setenv("MY_LEVEL", "3")
    assert OfTheUser().to_kwargs() == {"level": "3"}
    assert os.environ["MY_LEVEL"] == "3"
