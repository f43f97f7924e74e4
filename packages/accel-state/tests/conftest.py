from __future__ import annotations

import site
import sys

import pytest


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the packages that are installed; modules that are imported already stay."""
    folders = {*site.getsitepackages(), site.getusersitepackages()}
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in folders])
