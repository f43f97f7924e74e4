from __future__ import annotations

import sys

import pytest

from accel_launch.cli import COMMAND_GROUP, summary_of
from accel_state.registry import Registry, entry_points

OURS = {point.name: point.value for point in entry_points(COMMAND_GROUP) if point.value.startswith("accel")}


@pytest.mark.parametrize("name", sorted(OURS))
def test_the_summary_read_from_the_source_is_the_help_of_the_command(name):
    assert summary_of(OURS[name]) == Registry("command", COMMAND_GROUP).get(name).help


def test_reading_a_summary_imports_nothing(tmp_path, monkeypatch):
    package = tmp_path / "heavy_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "work.py").write_text('"""Do heavy work.\n\nAnd more."""\nraise SystemExit("imported")')
    monkeypatch.syspath_prepend(str(tmp_path))
    assert summary_of("heavy_package.work:command") == "Do heavy work"
    assert "heavy_package" not in sys.modules


@pytest.mark.parametrize("value", ["no_such_package.module:command", "sys:command", "accel_launch.nothing:x"])
def test_a_command_without_source_has_an_empty_summary(value):
    assert summary_of(value) == ""
