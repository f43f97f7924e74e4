from __future__ import annotations

import site
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def nothing_installed() -> Iterator[None]:
    """Hide the packages that are installed; modules that are imported already stay."""
    before = sys.path[:]
    folders = {*site.getsitepackages(), site.getusersitepackages()}
    sys.path[:] = [entry for entry in sys.path if entry not in folders]
    yield
    sys.path[:] = before
