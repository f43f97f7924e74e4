"""Scripts that Accelerate's own tests start do on accel, unchanged, what they do on Accelerate."""

from __future__ import annotations

from pathlib import Path

import peer_scripts
import peer_sources
import pytest

pytestmark = pytest.mark.engine("libraries")

CLIENTS = Path(__file__).parents[1] / "docs" / "reference" / "clients.md"
SAMPLE = (
    "test_cli.py",
    "test_ops.py",
    "test_sync.py",
    "test_merge_weights.py",
    "external_deps/test_metrics.py",
)


def test_scripts_of_accelerate_print_the_same(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "")  # which `outcome` sets
    scripts = peer_sources.unpacked() / peer_sources.SCRIPTS
    runs = [run for run in peer_scripts.SCRIPTS if run.script in SAMPLE and run.num_processes < 3]
    results = [(run, *peer_scripts.compare(run, scripts)) for run in runs]
    assert [result for result in results if result[1] == "differs"] == []
    same = sum(verdict == "same" for _, verdict, _ in results)
    assert f"{same} of {len(results)} print the same" in CLIENTS.read_text(encoding="utf-8")
