"""How bodies and outcomes travel."""

import pytest

from accel_state.errors import ConfigError
from tools.harness.remote_calls import Body, Call, Outcome, load_module


def double(number, *, plus=0):
    return 2 * number + plus


class Holder:
    @staticmethod
    def body():
        return "held"


class TwoArgumentsError(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def test_call_finds_its_function_by_file_and_name():
    assert Call.of(double, (4,), {"plus": 1})() == 9
    assert Body.of(Holder.body).load()() == "held"
    assert Body.of(double).file == __file__


def test_file_is_imported_once_under_the_given_name(tmp_path):
    file = tmp_path / "some_body.py"
    file.write_text("def body():\n    return __name__\n")
    assert Body("a.name.of.its.own", str(file), "body").load()() == "a.name.of.its.own"
    assert load_module("a.name.of.its.own", str(file)) is load_module("a.name.of.its.own", str(file))


def test_function_that_cannot_be_found_again_is_refused():
    def inner():
        pass

    with pytest.raises(ConfigError, match="inner` cannot be run in other processes.*top-level function"):
        Body.of(inner)


def test_error_travels_as_itself_and_its_trace_as_text():
    try:
        double("x", plus=1)
    except TypeError as error:
        outcome = Outcome.of_error(error)
    assert isinstance(outcome.exception(), TypeError)
    assert "in double" in outcome.trace


def test_error_that_would_not_open_again_travels_as_text_alone():
    outcome = Outcome.of_error(TwoArgumentsError(1, 2))
    assert outcome.exception() is None
    assert "TwoArgumentsError: 1 and 2" in outcome.trace
