"""Accelerate's own tests pass on accel, but for those that `peer_suite.toml` gives a reason for."""

from __future__ import annotations

from pathlib import Path

import peer_suite
import pytest

CLIENTS = Path(__file__).parents[1] / "docs" / "reference" / "clients.md"
SAMPLE = (
    "test_accelerator.py",
    "test_cli.py",
    "test_cpu.py",
    "test_grad_sync.py",
    "test_hooks.py",
    "test_modeling_utils.py",
    "test_sagemaker.py",
)
"""Each runs in a minute or two; ``python integration-tests/peer_suite.py`` runs all."""


@pytest.mark.engine("libraries")
@pytest.mark.timeout(900)
def test_accelerates_own_tests_pass(tmp_path: Path) -> None:
    suite = peer_suite.Suite.prepare(tmp_path)
    found = peer_suite.compare(*peer_suite.run_both(suite, SAMPLE), peer_suite.read_reasons())
    assert not found.without_reason, found.table()
    assert not found.reasons_left_over
    page = CLIENTS.read_text(encoding="utf-8")
    assert [file for file in SAMPLE if f"{file}: {found.summary(f'{file}::')}" not in page] == []


def test_a_difference_needs_a_reason_and_a_reason_a_difference() -> None:
    there = {"a.py::one": "passed", "a.py::two[x]": "passed", "a.py::three": "passed", "a.py::four": "failed"}
    here = {"a.py::one": "it broke", "a.py::two[x]": "skipped", "a.py::three": "passed"}
    reasons = {"a.py::two": "By design.", "a.py::three": "It was so once.", "b.py::other": "Not run."}
    found = peer_suite.compare(there, here, reasons)
    assert found.summary() == "1 of 3"
    assert found.without_reason == ["a.py::one"]
    assert found.reasons_left_over == ["a.py::three"]
    assert "a.py::two[x]: By design." in found.table()
    assert "a.py::one: NO REASON: it broke" in found.table()


def test_a_file_that_cannot_be_imported_passes_none_of_its_tests() -> None:
    found = peer_suite.compare({"a.py::one": "passed"}, {"a.py::": "collection failure"}, {})
    assert found.differences == {"a.py::one": "collection failure"}


def test_nothing_is_compared_where_a_side_would_run_the_other_package(tmp_path: Path) -> None:
    stranger = tmp_path / "accelerate"
    for folder in (stranger, tmp_path / "accelerate-1.0.dist-info", tmp_path / "test_utils"):
        folder.mkdir()
    (stranger / "__init__.py").write_text("__version__ = '1.0'\nclass Accelerator: pass\n")
    (tmp_path / "accelerate-1.0.dist-info" / "METADATA").write_text("Name: accelerate\nVersion: 1.0\n")
    suite = peer_suite.Suite(tmp_path, extras=tmp_path, peer=tmp_path)
    with pytest.raises(SystemExit, match=r"`accelerate` is not accel, on which .* environment without"):
        suite.show_packages()
