from __future__ import annotations

import pytest

from accel_state.environment.parsers import boolean, choice, names, number
from accel_state.environment.setting import Setting, rule
from accel_state.errors import ConfigError

PRECISION = Setting("precision", "MY_PRECISION", choice("no", "fp16"), "no", "Number format.")


def test_unset_and_blank_give_the_default():
    assert PRECISION.value_of(None) == "no"
    assert PRECISION.value_of("  ") == "no"


def test_a_wrong_value_names_variable_value_choices_and_the_nearest():
    with pytest.raises(ConfigError) as caught:
        PRECISION.value_of("fp61")
    assert (
        str(caught.value) == "`MY_PRECISION` is `fp61`, but it must be one of: no, fp16. Did you mean `fp16`?"
    )
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_wrong_value_from_elsewhere_names_that_place():
    with pytest.raises(ConfigError, match="^`--precision` is `x`, but it must be"):
        PRECISION.value_of("x", source="--precision")


@pytest.mark.parametrize(
    ("parser", "value", "text"),
    [(boolean, True, "true"), (boolean, False, "false"), (names, ("A", "B"), "A,B"), (number, 0.5, "0.5")],
)
def test_text_and_value_are_each_others_opposite(parser, value, text):
    setting = Setting("name", "VARIABLE", parser, None, "")
    assert setting.text_of(value) == text
    assert setting.value_of(text) == value


def test_choices_come_from_the_parser():
    assert PRECISION.choices == ("no", "fp16")
    assert Setting("name", "VARIABLE", boolean, None, "").choices is None


def test_settings_of_a_rule_are_named_alike_but_for_what_is_given():
    fsdp = rule("fsdp_{}", "FSDP_{}", "--fsdp_{}", "fsdp_config.fsdp_{}")
    assert fsdp("version", number, 1.0, "Version.") == Setting(
        "fsdp_version", "FSDP_VERSION", number, 1.0, "Version.", "--fsdp_version", "fsdp_config.fsdp_version"
    )
    broken = fsdp("level", number, None, "Level.", variable="F_LEVEL", flag=None)
    assert (broken.variable, broken.flag, broken.config_key) == ("F_LEVEL", None, "fsdp_config.fsdp_level")
    assert rule("{}", "ACCELERATE_{}")("level", number, None, "Level.").config_key is None
