from __future__ import annotations

import subprocess
import sys

import accel_backends


def test_every_public_name_resolves():
    assert accel_backends.__all__ == sorted(accel_backends.__all__)
    for name in accel_backends.__all__:
        assert getattr(getattr(accel_backends, name), "__name__", name) == name  # a table has none


def test_importing_the_package_imports_no_torch():
    code = "import sys, accel_backends; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=180, check=False).returncode == 0


def test_training_without_compilation_imports_no_compiler_of_its_own():
    """The compiler takes longer to import than all the rest."""
    code = (
        "import sys, accel_backends as b\n"
        "for name in b.__all__: getattr(b, name)\n"
        "import accel_backends.strategies.ddp\n"
        "sys.exit(any('accel_backends' in str(m) for m in sys.modules if 'compiled_module' in m))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=180, check=False).returncode == 0
