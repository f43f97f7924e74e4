from __future__ import annotations

import pytest

from accel_launch.accelerators.nvidia import Nvidia

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


class FakeNVML:
    """The part of `pynvml` that is used. Each GPU: its name, and those of its instances (None: cannot be cut)."""

    NVML_DEVICE_MIG_ENABLE = 1

    class NVMLError(Exception):
        pass

    def __init__(self, gpus=(), *, has_driver=True):
        self.gpus, self.has_driver, self.num_open = list(gpus), has_driver, 0

    def nvmlInit(self):
        if not self.has_driver:
            raise self.NVMLError("Driver Not Loaded")
        self.num_open += 1

    def nvmlShutdown(self):
        self.num_open -= 1

    def nvmlDeviceGetCount(self):
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, place):
        return self.gpus[place]

    def nvmlDeviceGetUUID(self, handle):
        return handle if isinstance(handle, str) else handle[0]

    def nvmlDeviceGetMigMode(self, handle):
        if handle[1] is None:
            raise self.NVMLError("Not Supported")
        return (1 if handle[1] else 0, 0)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, place):
        if place >= len(handle[1]):
            raise self.NVMLError("Not Found")
        return handle[1][place]


def visible(root, selection=None, *, nvml=None):
    environ = {} if selection is None else {"CUDA_VISIBLE_DEVICES": selection}
    return Nvidia(lambda: nvml).visible(environ, root)


def test_without_a_driver_nothing_is_queried(machine):
    assert visible(machine(["dev/null"]), nvml=FakeNVML([("GPU-a", None)])) == ()


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


def test_nvml_knows_the_names_and_is_closed_again(machine):
    root = machine(["dev/nvidiactl"])
    nvml = FakeNVML([("GPU-aa", None), ("GPU-bb", ())])
    assert visible(root, nvml=nvml) == ("0", "1")
    assert visible(root, "GPU-bb,GPU-aa", nvml=nvml) == ("1", "0")
    assert nvml.num_open == 0


def test_where_nvml_has_no_driver_the_files_are_queried(machine):
    root = machine({"dev/nvidiactl": "", **told("GPU-aa")})
    assert visible(root, nvml=FakeNVML(has_driver=False)) == ("0",)


@pytest.mark.parametrize(
    ("selection", "seen"),
    [
        (None, ("1",)),  # an instance, and no whole GPU next to it
        ("0", ("0",)),
        ("0,1", ("1",)),
        ("MIG-1111", ("MIG-1111",)),
        ("MIG-2222,MIG-1111", ("MIG-2222",)),  # one at most
        ("MIG-3333", ()),
        ("MIG-GPU-bb/1/0", ("MIG-GPU-bb/1/0",)),
    ],
)
def test_a_process_sees_one_instance_of_mig_at_most(machine, selection, seen):
    nvml = FakeNVML([("GPU-aa", None), ("GPU-bb", ("MIG-1111", "MIG-2222"))])
    assert visible(machine(["dev/nvidiactl"]), selection, nvml=nvml) == seen


def test_mig_shows_in_the_drivers_files(machine):
    cut = "proc/driver/nvidia/capabilities/gpu1/mig/gi3/ci0/access"
    whole = "proc/driver/nvidia/capabilities/gpu0/mig/config"
    root = machine({**told("GPU-aa", "GPU-bb"), cut: "", whole: ""})
    assert visible(root) == ("1",)
    assert visible(root, "0") == ("0",)
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


def test_windows_linux_has_a_gpu_where_its_driver_lies(machine):
    assert visible(machine(["dev/dxg"])) == ()
    assert visible(machine(["dev/dxg", "usr/lib/wsl/lib/libcuda.so.1"])) == ("0",)
