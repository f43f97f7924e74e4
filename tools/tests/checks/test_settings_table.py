from __future__ import annotations

from dataclasses import fields

import pytest

from accel_backends import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from accel_state.environment.settings import SETTINGS
from tools.checks.settings_table import BEGIN, PAGE, ROWS, problems, with_table

OLD = f"# A page\n\n{BEGIN}| what it was | | | |\n\nThe end.\n"


@pytest.mark.parametrize(
    ("kind", "column"), [(FullyShardedDataParallelPlugin, "fsdp"), (DeepSpeedPlugin, "deepspeed")]
)
def test_every_field_of_a_plugin_is_in_one_row(kind, column):
    listed = [name for row in ROWS for name in getattr(row, column)]
    assert sorted(listed) == sorted(field.name for field in fields(kind) if field.init)


def test_the_flags_of_both_are_in_the_table():
    page = with_table(OLD)
    flags = [
        setting.flag for setting in SETTINGS.values() if setting.name.startswith(("fsdp_", "deepspeed_"))
    ]
    assert [flag for flag in flags if flag is not None and f"(`{flag}`)" not in page] == []


def test_an_old_table_is_found_and_replaced_and_the_rest_stays(tmp_path):
    file = tmp_path / PAGE
    file.parent.mkdir(parents=True)
    file.write_text(OLD)
    assert problems(tmp_path) == [
        f"{PAGE}: the table of settings is old. `python tools/dev.py check settings_table --update` rewrites it."
    ]
    file.write_text(with_table(OLD))
    assert problems(tmp_path) == []
    page = file.read_text()
    assert page.startswith("# A page\n\n")
    assert page.endswith(" |\n\nThe end.\n")
    assert "what it was" not in page
