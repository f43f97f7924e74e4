from __future__ import annotations

from pathlib import Path

import pytest

from accel_state.environment.reference import PAGE, main, reference_page
from accel_state.environment.settings import SETTINGS

ROOT = Path(__file__).parents[4]


def test_every_setting_is_on_the_page():
    page = reference_page()
    for setting in SETTINGS.values():
        assert f"| `{setting.variable}` | {setting.help} |" in page


def test_every_row_has_as_many_cells_as_the_header():
    rows = [line for line in reference_page().splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {7}


def test_main_writes_the_page(tmp_path):
    main([str(tmp_path / "new" / "page.md")])
    assert (tmp_path / "new" / "page.md").read_text(encoding="utf-8") == reference_page()


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="the package is tested outside of its repository")
def test_the_page_in_the_documentation_is_current():
    written = (ROOT / PAGE).read_text(encoding="utf-8")
    assert written == reference_page(), (
        "run `python -m accel_state.environment.reference` in the repository's root"
    )
