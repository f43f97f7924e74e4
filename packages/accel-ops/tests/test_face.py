from __future__ import annotations

import subprocess
import sys

import accel_ops


def test_every_public_name_can_be_imported_and_is_listed():
    assert accel_ops.__all__ == sorted(accel_ops.__all__)
    for name in accel_ops.__all__:
        assert getattr(accel_ops, name) is not None
        assert name in dir(accel_ops)


def test_no_module_shadows_a_public_name():
    # `import accel_ops.x` would otherwise replace the function `x` by the module.
    code = (
        "import accel_ops, pkgutil, importlib\n"
        "for module in pkgutil.walk_packages(accel_ops.__path__, 'accel_ops.'): "
        "importlib.import_module(module.name)\n"
        "assert all(not hasattr(getattr(accel_ops, name), '__path__') and type(getattr(accel_ops, "
        "name)).__name__ != 'module'"
        " for name in accel_ops.__all__)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_importing_the_package_does_not_import_torch():
    code = "import accel_ops, sys; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=180)
