from __future__ import annotations

import sys

import pytest

from accel_state.open_files import max_open_files, raise_open_file_limit


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_the_limit_can_be_raised_as_far_as_is_said():
    limit = max_open_files()
    assert limit > 0
    assert raise_open_file_limit(64) >= min(64, limit)
