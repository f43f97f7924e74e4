from __future__ import annotations

import subprocess
import sys
from types import GenericAlias

import accel_backends


def test_every_public_name_resolves():
    assert accel_backends.__all__ == sorted(accel_backends.__all__)
    for name in accel_backends.__all__:
        found = getattr(accel_backends, name)
        if not isinstance(found, GenericAlias):
            assert getattr(found, "__name__", name) == name  # a table has none


def test_importing_the_package_imports_no_torch():
    code = "import sys, accel_backends; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=180, check=False).returncode == 0
