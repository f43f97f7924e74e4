import pytest

from tools.checks import tracker_table
from tools.workspace import ROOT


def test_the_table_is_current():
    assert tracker_table.problems(ROOT) == []


def test_an_old_row_is_found_and_put_right(tmp_path):
    page = (ROOT / tracker_table.PAGE).read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith("| `jsonl` |  |")]
    old = page.replace(row, row.replace("|  |", "| yes |", 1))
    (tmp_path / tracker_table.PAGE).parent.mkdir(parents=True)
    (tmp_path / tracker_table.PAGE).write_text(old, encoding="utf-8")
    assert "the table of abilities is old" in tracker_table.problems(tmp_path)[0]
    assert tracker_table.with_table(old) == page


def test_a_page_without_the_table_is_an_error():
    with pytest.raises(ValueError, match="has no table that begins with"):
        tracker_table.with_table("# accel-trackers\n")
