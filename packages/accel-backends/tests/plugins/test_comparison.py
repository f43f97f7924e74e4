from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from accel_backends import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from accel_backends.plugins.comparison import PAGE, ROWS, comparison_page, main
from accel_state.environment.settings import SETTINGS

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("kind", "column"), [(FullyShardedDataParallelPlugin, "fsdp"), (DeepSpeedPlugin, "deepspeed")]
)
def test_every_field_of_a_plugin_is_in_one_row(kind, column):
    listed = [name for row in ROWS for name in getattr(row, column)]
    assert sorted(listed) == sorted(field.name for field in fields(kind) if field.init)


def test_the_flags_of_both_are_on_the_page():
    page = comparison_page()
    flags = [
        setting.flag for setting in SETTINGS.values() if setting.name.startswith(("fsdp_", "deepspeed_"))
    ]
    missing = [flag for flag in flags if flag is not None and f"(`{flag}`)" not in page]
    assert missing == []


def test_main_writes_the_page(tmp_path):
    main([str(tmp_path / "page.md")])
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == comparison_page()


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the package is tested outside of its repository")
def test_the_page_in_the_documentation_is_current():
    assert (ROOT / PAGE).read_text(encoding="utf-8") == comparison_page(), (
        "run `python -m accel_backends.plugins.comparison` in the repository's root"
    )
