import pytest

from accel_state.devices import find_vendor
from tools.checks import device_table
from tools.workspace import ROOT


def test_the_table_is_current():
    assert device_table.problems(ROOT) == []


def test_an_old_row_is_found_and_put_right(tmp_path):
    page = (ROOT / device_table.PAGE).read_text(encoding="utf-8")
    old = page.replace("| `gloo`, `MULTI_CPU` |", "| no |")
    assert old != page
    (tmp_path / device_table.PAGE).parent.mkdir(parents=True)
    (tmp_path / device_table.PAGE).write_text(old, encoding="utf-8")
    assert "the table of devices is old" in device_table.problems(tmp_path)[0]
    assert device_table.with_table(old) == page


def test_a_page_without_the_table_is_an_error():
    with pytest.raises(ValueError, match="has no table that begins with"):
        device_table.with_table("# Devices\n")


def test_a_device_has_the_strategies_that_would_not_be_refused_there():
    assert device_table.strategies_on(find_vendor("mps")) == ["single"]
    assert device_table.strategies_on(find_vendor("xla")) == ["xla"]
    assert "deepspeed" not in device_table.strategies_on(find_vendor("musa"))
