from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys

import pytest

import accel_state

TORCH_FREE = [
    "accel_state",
    "accel_state.affinity",
    "accel_state.availability",
    "accel_state.devices",
    "accel_state.devices.vendors",
    "accel_state.registry",
    "accel_state.enums",
    "accel_state.environment",
    "accel_state.errors",
    "accel_state.gradient_state",
    "accel_state.lazy",
    "accel_state.mesh_layout",
    "accel_state.nvidia",
    "accel_state.launched_by.detect",
    "accel_state.registry",
    "accel_state.topology",
    "accel_state.versions",
]


def modules_after(code: str) -> set[str]:
    program = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=True
    )
    return set(json.loads(ran.stdout))


def test_the_torch_free_half_does_not_import_torch():
    loaded = modules_after("\n".join(f"import {name}" for name in TORCH_FREE))
    assert set(TORCH_FREE) <= loaded
    assert "torch" not in loaded


def test_requesting_settings_names_and_packages_does_not_import_torch():
    loaded = modules_after(
        "from accel_state import Registry, detect_topology\n"
        "from accel_state.availability import is_torchao_available, is_pippy_available, why_not\n"
        "from accel_state.environment import read, snapshot\n"
        "read('mixed_precision'); detect_topology(snapshot())\n"
        "Registry('strategy', 'accel.strategies').names()\n"
        "is_torchao_available(); is_pippy_available(); why_not('wandb')"
    )
    assert "torch" not in loaded


def test_importing_settings_and_registry_leaves_slow_modules_alone():
    loaded = modules_after(
        "import accel_state.registry\nfrom accel_state.environment import read\nread('use_cpu')"
    )
    assert not loaded & {
        "importlib.metadata",
        "dataclasses",
        "inspect",
        "difflib",
        "packaging",
        "logging",
        "email",
    }


@pytest.mark.parametrize("name", accel_state.__all__)
def test_every_public_name_resolves(name):
    assert getattr(accel_state, name) is not None


def test_all_is_sorted():
    assert accel_state.__all__ == sorted(accel_state.__all__)


def test_the_version_is_the_one_of_the_distribution():
    assert importlib.metadata.version("accel-state") == accel_state.__version__
