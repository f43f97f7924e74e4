"""Flag before environment before config file before default: every setting, all eight combinations."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from accel_launch.config.file import ConfigFile
from accel_launch.options import OPTIONS
from accel_launch.resolution import Resolved, resolve

SOURCES = ("flag", "environment", "config file")


@pytest.mark.parametrize("setting", OPTIONS, ids=lambda setting: setting.name)
def test_the_first_setting_decides(setting, texts_for):
    texts = texts_for(setting)
    said = (texts[0], texts[1 % len(texts)], texts[2 % len(texts)])
    can_say = (setting.flag, setting.variable, setting.config_key)
    for speaks in product((False, True), repeat=3):
        speakers = [place for place in range(3) if speaks[place] and can_say[place]]
        resolved = resolve(
            [setting],
            flags={setting.name: said[0]} if 0 in speakers else {},
            environ={setting.variable: said[1]} if 1 in speakers else {},
            config=ConfigFile(Path("c.yaml"), {setting.config_key: said[2]} if 2 in speakers else {}),
        )[setting.name]
        if speakers:
            first = speakers[0]
            assert resolved == Resolved(setting.parse(said[first]), SOURCES[first])
        else:
            assert resolved == Resolved(setting.default, "default")


def test_each_setting_can_be_distinguished_from_its_default(texts_for):
    """Else the matrix would hold for a launcher that ignores everything."""
    blind = [setting.name for setting in OPTIONS if setting.parse(texts_for(setting)[0]) == setting.default]
    assert blind == ["parallelism_cp_backend"]  # which have one word only
