from __future__ import annotations

from pathlib import Path

import pytest

from accel_launch.config.file import ConfigFile
from accel_launch.config.show import as_data, as_table, as_text, engine_rows, rows_of
from accel_launch.options import OPTIONS
from accel_state.errors import UnknownNameError

CONFIG = ConfigFile(
    Path("c.yaml"), {"mixed_precision": "fp16", "num_processes": 2, "distributed_type": "FSDP"}
)


def test_each_setting_is_shown_with_who_set_it():
    rows = rows_of(
        flags={"mixed_precision": "bf16", "aws_secret_access_key": "hush"},
        environ={"ACCELERATE_USE_CPU": "yes"},
        config=CONFIG,
    )
    data = as_data(rows)
    assert list(data) == [setting.name for setting in OPTIONS]
    assert data["mixed_precision"] == {"value": "bf16", "source": "flag", "given_as": "--mixed_precision"}
    assert data["use_cpu"] == {"value": "true", "source": "environment", "given_as": "ACCELERATE_USE_CPU"}
    assert data["num_processes"] == {"value": "2", "source": "config file", "given_as": "num_processes"}
    assert data["fsdp_version"] == {"value": "1", "source": "default", "given_as": ""}
    assert (data["use_fsdp"]["value"], data["use_fsdp"]["source"]) == ("true", "config file")
    assert data["aws_secret_access_key"]["value"] == "(secret)"
    assert "hush" not in str(data)


def test_text_has_what_was_set_and_all_of_it_on_request():
    rows = rows_of(flags={}, environ={}, config=CONFIG)
    short, whole = (as_text(rows, config=CONFIG, is_all=is_all) for is_all in (False, True))
    assert short.startswith("config file: c.yaml\n\nwhat to run on:\n  num_processes")
    assert "fsdp_version" not in short
    assert f"{len(OPTIONS) - 3} more settings have their default" in short
    assert "fsdp_version" in whole


def test_an_engine_without_a_view_is_named_with_those_that_have_one():
    with pytest.raises(UnknownNameError, match="Unknown engine view `warp`. "):
        engine_rows("warp", flags={}, environ={}, config=ConfigFile(Path("c.yaml"), {}))


def test_rows_are_shown_as_a_table():
    rows = [("key", "value", "said by"), ("a.long_key", "1", "the file"), ("b", "true", "")]
    assert as_table(rows) == ["key         value  said by", "a.long_key  1      the file", "b           true"]
