import pytest

from tools.checks import dependency_table
from tools.checks.dependency_table import requirements_of
from tools.workspace import ROOT


def test_the_table_is_current():
    assert dependency_table.problems(ROOT) == []


def test_an_old_row_is_found_and_put_right(tmp_path):
    page = (ROOT / dependency_table.PAGE).read_text(encoding="utf-8")
    old = page.replace("packaging, psutil, torch", "psutil, torch", 1)
    (tmp_path / dependency_table.PAGE).parent.mkdir(parents=True)
    (tmp_path / dependency_table.PAGE).write_text(old, encoding="utf-8")
    assert "the table of dependencies is old" in dependency_table.problems(tmp_path)[0]
    assert dependency_table.with_table(old) == page


def test_a_page_without_the_table_is_an_error():
    with pytest.raises(ValueError, match="has no table that begins with"):
        dependency_table.with_table("# Dependencies\n")


def test_what_others_require_comes_along():
    launch = requirements_of("accel-launch")
    assert launch.ours == ("accel-state",)
    assert "questionary" in launch.direct
    assert {"packaging", "prompt-toolkit", "wcwidth"} <= set(
        launch.through_others
    )  # of a sibling, of questionary
    assert "sympy" not in launch.through_others  # of torch
