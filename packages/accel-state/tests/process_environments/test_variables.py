from __future__ import annotations

import pytest

from accel_state.errors import ConfigError
from accel_state.process_environments.variables import (
    is_set,
    optional_int,
    required_int,
)


def test_blank_counts_as_unset():
    assert not is_set({"A": "  "}, "A")
    assert not is_set({}, "A")
    assert optional_int({"A": ""}, "A") is None
    assert optional_int({"A": " 3 "}, "A") == 3


def test_a_missing_number_says_who_asked_for_it_and_what_to_do():
    with pytest.raises(ConfigError) as caught:
        required_int({"RANK": "0"}, "WORLD_SIZE", launcher="torchrun", because="RANK")
    assert str(caught.value) == (
        "`WORLD_SIZE` is not set, although `RANK` is. torchrun sets both; set the missing one, or unset "
        "`RANK` to run a single process."
    )
