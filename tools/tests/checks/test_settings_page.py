from __future__ import annotations

from accel_state.environment.settings import SETTINGS
from tools.checks.settings_page import PAGE, problems, reference_page
from tools.workspace import ROOT


def test_every_setting_is_on_the_page():
    page = reference_page()
    for setting in SETTINGS.values():
        assert f"| `{setting.variable}` | {setting.help} |" in page


def test_every_row_has_as_many_cells_as_the_header():
    rows = [line for line in reference_page().splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {7}


def test_the_page_is_current():
    assert problems(ROOT) == []


def test_an_old_page_is_reported(tmp_path):
    (tmp_path / PAGE).parent.mkdir(parents=True)
    (tmp_path / PAGE).write_text("# Settings\n", encoding="utf-8")
    assert "`python tools/dev.py check settings_page --update` rewrites it" in problems(tmp_path)[0]
