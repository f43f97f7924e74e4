from __future__ import annotations

import json

from accel_launch.remote_protocol import last_lines_within


def test_the_last_lines_are_kept_as_far_as_they_fit():
    lines = ["first", "x" * 10_000, "last"]
    assert last_lines_within(lines, 10_000) == ["first", "x" * 2000, "last"]
    assert last_lines_within(lines, 100) == ["last"]
    kept = last_lines_within(["\x00" * 2000] * 50, 2**17)
    assert 1 < len(json.dumps(kept)) <= 2**17
