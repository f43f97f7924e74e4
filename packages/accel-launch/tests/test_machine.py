from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from accel_launch.machine import (
    VENDORS,
    Accelerators,
    Vendor,
    amd,
    asked_for,
    chosen,
    find_accelerators,
    nvidia,
    ordinals,
    present_accelerators,
    says_built_for,
)
from accel_state.enums import DistributedType


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[Mapping[str, str]], Path]:
    """Build a folder that represents ``/``: files by path, with their text."""

    def build(files: Mapping[str, str] | list[str]) -> Path:
        for name in files:
            path = tmp_path / "root" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[name] if isinstance(files, Mapping) else "")
        return tmp_path / "root"

    return build


INFORMATION = (
    "Model: \t\t NVIDIA H200\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\nGPU Excluded:\t {excluded}\n"
)


def told(*uuids: str, excluded: str = "No") -> dict[str, str]:
    devices = {f"dev/nvidia{place}": "" for place in range(len(uuids))}
    return devices | {
        f"proc/driver/nvidia/gpus/0000:0{place}:00.0/information": INFORMATION.format(
            uuid=uuid, minor=place, excluded=excluded
        )
        for place, uuid in enumerate(uuids)
    }


def visible(root, selection=None):
    environ = {} if selection is None else {"CUDA_VISIBLE_DEVICES": selection}
    return nvidia(environ, root)


def test_without_a_driver_there_is_no_gpu(machine):
    assert visible(machine(["dev/null"])) == ()


def test_device_files_are_counted_from_zero_whatever_their_numbers(machine):
    root = machine(["dev/nvidiactl", "dev/nvidia3", "dev/nvidia7", "dev/nvidia-uvm"])
    assert visible(root) == ("0", "1")
    assert visible(root, "1") == ("1",)
    assert visible(root, "3") == ()
    assert visible(root, "GPU-x, GPU-y") == ("GPU-x", "GPU-y")  # nobody knows better


def test_the_drivers_files_know_the_names(machine):
    root = machine({"dev/nvidiactl": "", **told("GPU-aa", "GPU-bb")})
    assert visible(root) == ("0", "1")
    assert visible(root, "GPU-b") == ("1",)
    assert visible(root, "GPU-c") == ()
    assert visible(root, "") == visible(root, "-1") == ()


def test_a_gpu_that_the_driver_excludes_does_not_count(machine):
    assert visible(machine(told("GPU-aa", excluded="Yes"))) == ()


def test_mig_shows_in_the_drivers_files(machine):
    cut = "proc/driver/nvidia/capabilities/gpu1/mig/gi3/ci0/access"
    whole = "proc/driver/nvidia/capabilities/gpu0/mig/config"
    root = machine({**told("GPU-aa", "GPU-bb"), cut: "", whole: ""})
    assert visible(root) == visible(root, "0,1") == ("1",)  # an instance, and no whole GPU next to it
    assert visible(root, "0") == ("0",)
    assert visible(root, "MIG-2,MIG-1") == ("MIG-2",)  # one at most
    assert visible(root, "MIG-9") == ("MIG-9",)


def test_a_container_has_the_gpus_whose_device_files_it_has(machine):
    files = told("GPU-aa", "GPU-bb", "GPU-cc")
    del files["dev/nvidia0"], files["dev/nvidia2"]
    root = machine(files)
    assert visible(root) == ("0",)
    assert visible(root, "GPU-b") == ("0",)
    assert visible(root, "GPU-a") == ()


def test_a_container_without_device_files_has_no_gpu(machine):
    files = told("GPU-aa")
    del files["dev/nvidia0"]
    assert visible(machine(files)) == ()


def test_windows_linux_has_a_gpu_where_its_driver_is(machine):
    assert visible(machine(["dev/dxg"])) == ()
    assert visible(machine(["dev/dxg", "usr/lib/wsl/lib/libcuda.so.1"])) == ("0",)


NODES = "sys/class/kfd/kfd/topology/nodes"


def node(number: int, gpu_id: int, unique_id: int) -> dict[str, str]:
    return {
        f"{NODES}/{number}/gpu_id": f"{gpu_id}\n",
        f"{NODES}/{number}/properties": f"simd_count 440\nunique_id {unique_id}\n",
    }


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({}, ("0", "1", "2")),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, ("2", "0")),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ("1",)),
        ({"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "0,1"}, ("2",)),
        ({"ROCR_VISIBLE_DEVICES": "1,2"}, ("0", "1")),  # counted again
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, ("1",)),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, ()),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000ab"}, ("0",)),
        ({"HIP_VISIBLE_DEVICES": ""}, ()),
        ({"HIP_VISIBLE_DEVICES": "-1"}, ()),
    ],
)
def test_one_variable_reduces_and_the_other_chooses(machine, environ, seen):
    # The first node is the processor's.
    root = machine({**node(0, 0, 0), **node(1, 4711, 171), **node(2, 4712, 172), **node(10, 4713, 173)})
    assert amd(environ, root) == seen


def test_without_the_driver_there_are_no_amd_gpus(tmp_path):
    assert amd({}, tmp_path) == ()


UUIDS = ("GPU-aa11", "GPU-ab22", "GPU-b3")


@pytest.mark.parametrize(
    ("selection", "places"),
    [
        (None, (0, 1, 2)),
        ("2,0", (2, 0)),
        (" 0 , 2 ", (0, 2)),
        ("", ()),
        ("-1", ()),
        ("0,-1,2", (0,)),
        ("0,7,2", (0,)),
        ("0,0", ()),
        ("1gpu,2", (1, 2)),
        ("00", (0,)),
        ("GPU-b", (2,)),
        ("GPU-ab22,GPU-aa", (1, 0)),
        ("GPU-a", ()),  # two of them
        ("GPU-b3,GPU-b", ()),  # one, twice
        ("GPU-c", ()),
        ("none", ()),
    ],
)
def test_a_variable_chooses_up_to_the_first_that_is_not_there(selection, places):
    assert chosen(selection, ordinals(3), UUIDS) == places


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("2,0", ("2", "0")),
        ("", ()),
        ("-1", ()),
        ("0,7,2", ("0",)),
        ("GPU-8932f937,MIG-1", ("GPU-8932f937", "MIG-1")),
        (" 0 , 10 ", ("0", "10")),
        ("GPU-abc", ("GPU-abc",)),
        ("abc", ()),
    ],
)
def test_a_selection_ends_before_the_first_number_that_is_not_there(selection, expected):
    assert asked_for(selection, ("0", "2", "10")) == expected


def test_without_gpus_no_name_is_known():
    assert asked_for("GPU-8932f937", ()) == ()


def vendor(name, names, *, is_usable=True):
    return Vendor(name, "FAKE_VISIBLE", "MULTI_NPU", lambda: is_usable, lambda environ, root: names)


def test_the_first_vendor_that_torch_can_work_with_counts():
    vendors = [
        vendor("none", ()),
        vendor("other_torch", ("0",), is_usable=False),
        vendor("a", ("0", "1")),
        vendor("b", ("0",)),
    ]
    found = find_accelerators({}, vendors=vendors)
    assert found == Accelerators("a", ("0", "1"), "FAKE_VISIBLE", "MULTI_NPU")


def test_an_empty_machine_has_none(tmp_path):
    assert find_accelerators({}, root=tmp_path) == Accelerators()
    assert present_accelerators(root=tmp_path) == {}


def test_each_vendor_has_its_own_name_and_a_kind_that_config_files_know():
    assert len({vendor.name for vendor in VENDORS}) == len(VENDORS)
    assert {vendor.several for vendor in VENDORS} <= set(DistributedType.list())


@pytest.fixture
def extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Mapping[str, str]]:
    """Install a package of a vendor with this text, next to a torch that counts what the package sets."""

    def install(text: str) -> Mapping[str, str]:
        (tmp_path / "torch.py").write_text("class accelerator:\n    device_count = staticmethod(lambda: 0)\n")
        (tmp_path / "torch_npu.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        return {"PYTHONPATH": str(tmp_path)}

    return install


COUNTS_THREE = "import torch\ntorch.accelerator.device_count = lambda: 3\nprint('hello')\n"


@pytest.mark.parametrize(
    ("selection", "names"), [(None, ("0", "1", "2")), ("4,5,7", ("4", "5", "7")), ("all", ("0", "1", "2"))]
)
def test_devices_that_a_package_adds_to_torch_are_counted_by_torch(extension, selection, names):
    environ = extension(COUNTS_THREE) | (
        {} if selection is None else {"ASCEND_RT_VISIBLE_DEVICES": selection}
    )
    npu = [vendor for vendor in VENDORS if vendor.name == "npu"]
    assert find_accelerators(environ, vendors=npu).names == names


def test_a_package_that_cannot_be_imported_is_named(extension, capsys):
    environ = extension("raise RuntimeError('libascend is missing')\n")
    npu = [vendor for vendor in VENDORS if vendor.name == "npu"]
    assert find_accelerators(environ, vendors=npu) == Accelerators()
    said = capsys.readouterr().err
    assert "`torch_npu` cannot be counted" in said
    assert "libascend is missing" in said


def test_a_version_file_that_says_nothing_rules_nothing_out(tmp_path):
    file = tmp_path / "version.py"
    assert says_built_for("cuda", file)
    file.write_text("__version__ = '3.0'\n")
    assert says_built_for("cuda", file)
    file.write_text("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\nxpu = None\n")
    assert [says_built_for(name, file) for name in ("cuda", "hip", "xpu")] == [True, False, False]
