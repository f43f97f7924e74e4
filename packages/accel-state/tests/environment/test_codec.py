from __future__ import annotations

import pytest

from accel_state.environment import (
    convert_dict_to_env_variables,
    env_var_path_add,
    patch_environment,
    variable,
)


def test_variables_become_lines():
    assert convert_dict_to_env_variables({"A": "1", "B": "x,y=z"}) == ["A=1\n", "B=x,y=z\n"]


@pytest.mark.parametrize("value", ["", "two words", "a;b", "a\nb", "a<b", "a>b"])
def test_what_needs_quoting_is_left_out_and_named(value):
    with pytest.warns(UserWarning, match="The variable `BAD` is not passed on"):
        assert convert_dict_to_env_variables({"BAD": value, "A": "1"}) == ["A=1\n"]


def test_a_path_is_added_at_the_end_once_and_the_environment_left_alone():
    with patch_environment(ACCEL_TEST_PATH="/a:/b"):
        assert env_var_path_add("ACCEL_TEST_PATH", "/c") == "/a:/b:/c"
        assert env_var_path_add("ACCEL_TEST_PATH", "/a") == "/a:/b"
        assert variable("ACCEL_TEST_PATH") == "/a:/b"


def test_the_first_path_stands_alone():
    with patch_environment(ACCEL_TEST_PATH=None):
        assert env_var_path_add("ACCEL_TEST_PATH", "/c") == "/c"
