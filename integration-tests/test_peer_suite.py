"""Accelerate's own tests pass on accel, but for those that `peer_suite.toml` gives a reason for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import peer_suite
import pytest

SAMPLE = (
    "test_accelerator.py",
    "test_cli.py",
    "test_data_loader.py",
    "test_hooks.py",
    "test_modeling_utils.py",
    "test_sagemaker.py",
    "test_scheduler.py",
)
"""What runs in three minutes; ``python integration-tests/peer_suite.py`` runs all."""


@pytest.mark.engine("libraries")
@pytest.mark.timeout(900)
@pytest.mark.client("accelerate", "its own tests", differs="each test with a reason in peer_suite.toml")
def test_accelerates_own_tests_pass(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    suite = peer_suite.Suite.prepare(tmp_path)
    found = peer_suite.compare(*peer_suite.run_both(suite, SAMPLE), peer_suite.read_reasons())
    record_property("ran", found.summary)
    assert len(found.passed_there) > 100
    assert not found.without_reason, found.table()
    assert not found.reasons_left_over
