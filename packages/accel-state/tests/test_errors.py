from __future__ import annotations

import pickle

import pytest

from accel_state.errors import (
    AccelError,
    CheckpointError,
    ConfigError,
    LaunchError,
    NotAvailableError,
    StateError,
    UnknownNameError,
    did_you_mean,
)


@pytest.mark.parametrize(
    ("error", "built_in"),
    [
        (ConfigError, ValueError),
        (NotAvailableError, ImportError),
        (StateError, RuntimeError),
        (CheckpointError, RuntimeError),
        (LaunchError, RuntimeError),
        (UnknownNameError, KeyError),
        (UnknownNameError, ValueError),
    ],
)
def test_each_error_is_caught_as_accel_error_and_as_its_built_in(error, built_in):
    for expected in (AccelError, built_in):
        with pytest.raises(expected, match="plain words"):
            raise error("plain words")


def test_unknown_name_lists_the_known_names_and_the_nearest():
    error = UnknownNameError.of("strategy", "dpp", ["single", "ddp"])
    assert str(error) == "Unknown strategy `dpp`. Known: ddp, single. Did you mean `ddp`?"


def test_unknown_name_is_an_error_when_nothing_is_known():
    assert str(UnknownNameError.of("tracker", "x", [])) == "Unknown tracker `x`. No tracker is known."


def test_unknown_name_gives_no_hint_when_nothing_is_near():
    assert str(UnknownNameError.of("strategy", "zzz", ["ddp"])) == "Unknown strategy `zzz`. Known: ddp."


def test_unknown_name_survives_pickling():
    error = pickle.loads(pickle.dumps(UnknownNameError.of("strategy", "dpp", ["ddp"])))
    assert str(error).startswith("Unknown strategy `dpp`.")


def test_did_you_mean_ignores_case_and_answers_in_the_known_spelling():
    assert did_you_mean("fulshard", ["FULL_SHARD", "NO_SHARD"]) == " Did you mean `FULL_SHARD`?"
