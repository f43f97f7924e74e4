from __future__ import annotations

import pytest

from accel_state.environment import (
    convert_dict_to_env_variables,
    env_var_path_add,
    get_int_from_env,
    parse_choice_from_env,
    parse_flag_from_env,
    patch_environment,
    str_to_bool,
    variable,
)
from accel_state.errors import ConfigError


@pytest.mark.parametrize(
    ("word", "value"), [("Yes", 1), ("on", 1), ("1", 1), ("F", 0), ("off", 0), ("NO", 0)]
)
def test_str_to_bool_gives_numbers_or_truth_values(word, value):
    assert str_to_bool(word) is value
    assert str_to_bool(word, to_bool=True) is bool(value)


def test_str_to_bool_refuses_other_words():
    with pytest.raises(ConfigError, match="The value is `maybe`, but it must be true or false"):
        str_to_bool("maybe")


def test_a_flag_has_its_default_when_unset_or_empty():
    with patch_environment(ACCEL_TEST_FLAG=None):
        assert parse_flag_from_env("ACCEL_TEST_FLAG") is False
        assert parse_flag_from_env("ACCEL_TEST_FLAG", True) is True
    with patch_environment(ACCEL_TEST_FLAG=""):
        assert parse_flag_from_env("ACCEL_TEST_FLAG", True) is True


def test_a_flag_is_read_as_a_truth_value():
    with patch_environment(ACCEL_TEST_FLAG="no"):
        assert parse_flag_from_env("ACCEL_TEST_FLAG", True) is False


def test_a_flag_that_is_no_truth_value_names_the_variable():
    with patch_environment(ACCEL_TEST_FLAG="2"):
        with pytest.raises(ConfigError, match="`ACCEL_TEST_FLAG` is `2`, but it must be true or false"):
            parse_flag_from_env("ACCEL_TEST_FLAG")


def test_a_choice_is_the_text_or_the_default():
    with patch_environment(ACCEL_TEST_CHOICE="bf16"):
        assert parse_choice_from_env("ACCEL_TEST_CHOICE") == "bf16"
    with patch_environment(ACCEL_TEST_CHOICE=None):
        assert parse_choice_from_env("ACCEL_TEST_CHOICE") == "no"
        assert parse_choice_from_env("ACCEL_TEST_CHOICE", "fp16") == "fp16"


def test_the_first_variable_with_a_number_of_at_least_zero_counts():
    with patch_environment(ACCEL_TEST_A="-1", ACCEL_TEST_B="", ACCEL_TEST_C="0", ACCEL_TEST_D="7"):
        assert get_int_from_env(["ACCEL_TEST_A", "ACCEL_TEST_B", "ACCEL_TEST_C", "ACCEL_TEST_D"], 5) == 0
        assert get_int_from_env(["ACCEL_TEST_A"], 5) == 5


def test_a_variable_that_holds_no_number_is_named():
    with patch_environment(ACCEL_TEST_A="many"):
        with pytest.raises(ConfigError, match="`ACCEL_TEST_A` is `many`, but it must be a whole number"):
            get_int_from_env(["ACCEL_TEST_A"], 0)


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
