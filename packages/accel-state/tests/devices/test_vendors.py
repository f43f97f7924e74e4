"""A row of the table, or an entry point of another package, is all that a new kind of device needs."""

import subprocess
import sys

import pytest

from accel_state.devices import Vendor, find_vendor, known_vendors
from accel_state.enums import DistributedType, RNGType
from accel_state.errors import ConfigError
from tools.harness.scripts import run_script

# A vendor's package: the module that adds `torch.npx`, and the row.
PLUGIN = """
import types
import torch

torch.utils.rename_privateuse1_backend("npx")
torch.npx = types.SimpleNamespace(
    is_available=lambda: True, device_count=lambda: 2, set_device=lambda device: None, manual_seed_all=print
)
"""
ROW = """
from accel_state.devices import Vendor
from accel_state.versions import Package

vendor = Vendor(
    name="{name}", label="New Processor X", collective_backend="gloo", plugin=Package("npx_driver", ("npx-driver",))
)
"""
USE = """
from accel_state import AcceleratorState, DistributedType
from accel_state.availability import get_current_device_type, why_not
from accel_state.devices import current_device_backend, require_device_backend

assert why_not("npx") is None
assert current_device_backend() is require_device_backend("npx")
assert current_device_backend().distributed_type is DistributedType.MULTI_GPU
assert get_current_device_type() == ("npx", "MULTI_GPU")
state = AcceleratorState()
assert (str(state.device), state.distributed_type) == ("npx:0", DistributedType.NO)
current_device_backend().seed_all(7)
"""


def install(folder, *, name):
    """Install the vendor's package into ``folder``, with a row for the device type ``name``."""
    (folder / "npx_driver.py").write_text(PLUGIN)
    (folder / "npx_row.py").write_text(ROW.format(name=name))
    info = folder / "npx_driver-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: npx-driver\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[accel.devices]\n{name} = npx_row:vendor\n")


def test_an_installed_package_adds_a_device(tmp_path):
    install(tmp_path, name="npx")
    script = tmp_path / "use.py"
    script.write_text(USE)
    ran = run_script(script, timeout_s=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["7"]


def test_a_device_of_the_table_cannot_be_added_again(tmp_path, monkeypatch):
    install(tmp_path, name="cuda")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="The device `cuda`, which an entry point .* adds, exists already"):
        known_vendors()
    assert find_vendor("cuda").label == "CUDA device"


def test_the_distributed_type_of_a_vendor_is_a_known_one():
    assert (
        Vendor(name="npx", label="X", collective_backend=None).distributed_type is DistributedType.MULTI_GPU
    )
    with pytest.raises(ConfigError, match="`MULTI_NPX` is not a valid DistributedType. Choose one of: NO"):
        Vendor(name="npx", label="X", collective_backend=None, distributed_type="MULTI_NPX")


def test_the_table_is_read_without_torch():
    code = (
        "import sys, accel_state.devices as devices; "
        "assert len(devices.known_vendors()) == 11; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=180)


def test_users_enums_name_the_vendors_of_the_table():
    vendors = known_vendors()
    assert {vendor.name for vendor in vendors} - {"cpu", "mps"} == {*RNGType.list()} - {"torch", "generator"}
    engines = {"DEEPSPEED", "FSDP", "MEGATRON_LM"}
    assert {vendor.distributed_type for vendor in vendors} == {*DistributedType.list()} - engines
