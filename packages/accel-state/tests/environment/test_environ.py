from __future__ import annotations

import ast
from pathlib import Path

import pytest

import accel_state
from accel_state.environment import (
    clear_environment,
    convert_dict_to_env_variables,
    env_var_path_add,
    export,
    get_int_from_env,
    is_set,
    parse_choice_from_env,
    parse_flag_from_env,
    patch_environment,
    read,
    recorded_reads,
    restore,
    snapshot,
    str_to_bool,
    variable,
    write,
)
from accel_state.errors import ConfigError, UnknownNameError


def test_read_gives_the_parsed_value_or_the_default():
    with patch_environment(ACCELERATE_USE_CPU="yes", ACCELERATE_MIXED_PRECISION=None):
        assert read("use_cpu") is True
        assert read("mixed_precision") == "no"


def test_read_looks_into_a_mapping_instead_if_given():
    with patch_environment(ACCELERATE_MIXED_PRECISION="bf16"):
        assert read("mixed_precision", {}) == "no"
        assert read("mixed_precision", {"ACCELERATE_MIXED_PRECISION": "fp16"}) == "fp16"


def test_read_refuses_a_wrong_value_and_names_it():
    with patch_environment(FSDP_VERSION="3"):
        with pytest.raises(ConfigError, match="`FSDP_VERSION` is `3`, but it must be one of: 1, 2"):
            read("fsdp_version")


def test_read_refuses_a_name_that_is_not_in_the_table():
    with pytest.raises(UnknownNameError, match="Unknown setting `usecpu`.*Did you mean `use_cpu`"):
        read("usecpu")


def test_is_set_distinguishes_given_from_absent_and_blank():
    assert is_set("use_cpu", {"ACCELERATE_USE_CPU": "0"})
    assert not is_set("use_cpu", {"ACCELERATE_USE_CPU": " "})
    assert not is_set("use_cpu", {})


def test_write_sets_what_read_gives_back_and_none_unsets_it():
    with patch_environment(ACCELERATE_USE_CPU=None):
        write("use_cpu", True)
        assert variable("ACCELERATE_USE_CPU") == "true"
        assert read("use_cpu") is True
        write("use_cpu", None)
        assert variable("ACCELERATE_USE_CPU") is None
        write("use_cpu", None)


def test_write_of_a_wrong_value_changes_nothing():
    with patch_environment(ACCELERATE_MIXED_PRECISION="bf16"):
        with pytest.raises(ConfigError, match="`ACCELERATE_MIXED_PRECISION` is `fp7`"):
            write("mixed_precision", "fp7")
        assert variable("ACCELERATE_MIXED_PRECISION") == "bf16"


def test_snapshot_is_a_copy():
    with patch_environment(ACCEL_TEST_A="1"):
        before = snapshot()
        before["ACCEL_TEST_A"] = "2"
        assert variable("ACCEL_TEST_A") == "1"


def test_export_sets_and_unsets():
    with patch_environment(ACCEL_TEST_A="1", ACCEL_TEST_B=None):
        export({"ACCEL_TEST_A": None, "ACCEL_TEST_B": "2", "ACCEL_TEST_NEVER_SET": None})
        assert (variable("ACCEL_TEST_A"), variable("ACCEL_TEST_B")) == (None, "2")


def test_restore_brings_back_what_was_changed_added_and_removed():
    with clear_environment():
        export({"A": "1", "B": "2"})
        before = snapshot()
        export({"A": "9", "B": None, "C": "3"})
        restore(before)
        assert snapshot() == {"A": "1", "B": "2"}


def test_no_other_module_of_the_package_touches_the_environment():
    root = Path(accel_state.__file__).parent
    offenders = []
    for path in root.rglob("*.py"):
        if path.relative_to(root).as_posix() == "environment/environ.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = {"environ", "getenv", "putenv", "unsetenv"}
            is_use = (
                isinstance(node, ast.Attribute)
                and getattr(node.value, "id", "") == "os"
                and node.attr in names
            )
            if is_use or (
                isinstance(node, ast.ImportFrom)
                and node.module == "os"
                and names & {a.name for a in node.names}
            ):
                offenders.append(f"{path.relative_to(root)}:{node.lineno}")
    assert offenders == []


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


def test_a_path_is_added_at_the_end_once_and_the_environment_left_unchanged():
    with patch_environment(ACCEL_TEST_PATH="/a:/b"):
        assert env_var_path_add("ACCEL_TEST_PATH", "/c") == "/a:/b:/c"
        assert env_var_path_add("ACCEL_TEST_PATH", "/a") == "/a:/b"
        assert variable("ACCEL_TEST_PATH") == "/a:/b"


def test_the_first_path_is_separate():
    with patch_environment(ACCEL_TEST_PATH=None):
        assert env_var_path_add("ACCEL_TEST_PATH", "/c") == "/c"


def test_reads_of_variables_are_recorded_within_only(monkeypatch):
    monkeypatch.setenv("READ_WITHIN", "1")
    with recorded_reads({"READ_WITHIN", "ABSENT", "NEVER_READ"}) as reads:
        assert variable("READ_WITHIN") == "1"
        assert variable("ABSENT") is None
        assert variable("PATH") is not None
    assert variable("NEVER_READ") is None
    assert reads == {"READ_WITHIN", "ABSENT"}
