from pathlib import Path

import pytest

from accel_launch.config.engine_views import ViewRow, as_table, engine_rows
from accel_launch.config.file import ConfigFile
from accel_state.errors import UnknownNameError


def test_an_engine_without_a_view_is_named_with_those_that_have_one():
    with pytest.raises(UnknownNameError, match="Unknown engine view `warp`. "):
        engine_rows("warp", flags={}, environ={}, config=ConfigFile(Path("c.yaml"), {}))


def test_rows_are_shown_as_a_table():
    rows = [ViewRow("a.long_key", "1", "the file"), ViewRow("b", "true", "")]
    assert as_table(rows) == ("key         value  said by\na.long_key  1      the file\nb           true")
