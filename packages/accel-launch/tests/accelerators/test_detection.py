from __future__ import annotations

from accel_launch.accelerators.detection import VENDORS, find_accelerators, present_accelerators
from accel_launch.accelerators.protocol import Accelerators
from accel_state.enums import DistributedType


class Fake:
    variable, several = "FAKE_VISIBLE", "MULTI_NPU"

    def __init__(self, name, names, is_usable=True):
        self.name, self._names, self._is_usable = name, names, is_usable

    def visible(self, environ, root):
        return self._names if "FAKE_VISIBLE" not in environ else ()

    def is_usable(self):
        return self._is_usable


def test_the_first_vendor_that_torch_can_work_with_counts():
    vendors = [Fake("none", ()), Fake("other_torch", ("0",), False), Fake("a", ("0", "1")), Fake("b", ("0",))]
    assert find_accelerators({}, vendors=vendors) == Accelerators(
        "a", ("0", "1"), "FAKE_VISIBLE", "MULTI_NPU"
    )
    assert find_accelerators({"FAKE_VISIBLE": ""}, vendors=vendors) == Accelerators()
    assert present_accelerators(vendors=vendors) == {"other_torch": 1, "a": 2, "b": 1}


def test_an_empty_machine_has_none(tmp_path):
    assert find_accelerators({}, root=tmp_path) == Accelerators()
    assert present_accelerators(root=tmp_path) == {}


def test_each_vendor_has_its_own_name_and_a_kind_that_config_files_know():
    assert len({vendor.name for vendor in VENDORS}) == len(VENDORS)
    assert {vendor.several for vendor in VENDORS} <= set(DistributedType.list())
    assert all(isinstance(vendor.is_usable(), bool) for vendor in VENDORS)
