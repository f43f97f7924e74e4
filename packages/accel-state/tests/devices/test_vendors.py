"""One row, or one file of somebody else's package, is all that a new kind of device needs."""

import subprocess
import sys

import pytest

from accel_state.devices import Vendor, find_vendor, known_vendors, register_vendor
from accel_state.errors import ConfigError
from tools.harness.scripts import run_script

# What a vendor's package does when it is imported: it adds `torch.npx`, and one row.
ONE_FILE = """
import types
import torch
from accel_state.availability.package import Package
from accel_state.devices import Vendor, register_vendor

torch.utils.rename_privateuse1_backend("npx")
torch.npx = types.SimpleNamespace(
    is_available=lambda: True, device_count=lambda: 2, set_device=lambda device: None, manual_seed_all=print
)
register_vendor(
    Vendor(
        name="npx",
        title="New Processor X",
        collective_backend="gloo",
        distributed_type="MULTI_NPX",
        packages=(Package("npx_driver", ("npx-driver",)),),
        plugin="npx_driver",
    )
)
"""
USE = """
import sys
import npx_driver
from accel_state import AcceleratorState, DistributedType, RNGType
from accel_state.availability import get_current_device_type, why_not
from accel_state.devices import current_device_backend, require_device_backend

assert why_not("npx") is None
assert current_device_backend() is require_device_backend("npx")
assert DistributedType("MULTI_NPX") == DistributedType.MULTI_NPX == current_device_backend().distributed_type
assert RNGType("npx") is RNGType.NPX
assert RNGType.NPX in list(RNGType) and "npx" in RNGType
assert get_current_device_type() == ("npx", "MULTI_NPX")
state = AcceleratorState()
assert (str(state.device), state.distributed_type) == ("npx:0", DistributedType.NO)
current_device_backend().rng.seed(7)
del sys.modules["npx_driver"]
print(why_not("npx"))
"""


def test_one_file_adds_a_device(tmp_path):
    (tmp_path / "npx_driver.py").write_text(ONE_FILE)
    script = tmp_path / "use.py"
    script.write_text(USE)
    ran = run_script(script, timeout_s=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "7",
        "No New Processor X: `npx-driver` is not installed. Run `pip install npx-driver`.",
    ]


def test_a_name_that_is_taken_is_refused():
    other = Vendor(name="cuda", title="Other", collective_backend=None, distributed_type="NO")
    with pytest.raises(ConfigError, match="The device `cuda` exists already"):
        register_vendor(other)
    assert find_vendor("cuda").title == "CUDA device"
    assert [vendor.name for vendor in known_vendors()].count("cuda") == 1


def test_the_table_is_read_without_torch():
    code = (
        "import sys, accel_state.devices as devices; "
        "assert len(devices.known_vendors()) == 11; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=180)
