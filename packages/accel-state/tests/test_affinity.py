from __future__ import annotations

import os
import sys
import types

import pytest

from accel_state import affinity
from accel_state.affinity import (
    CPUInformation,
    get_cpu_distributed_information,
    override_numa_affinity,
    set_numa_affinity,
)
from accel_state.environment import clear_environment, export, patch_environment
from accel_state.errors import ConfigError, NotAvailableError
from accel_state.partial_state import PartialState


def devices(root, *, cores_of_gpus):
    """Make up the folder of PCI devices: the cores near each GPU, by its number on the bus."""
    for bus, cores in cores_of_gpus.items():
        folder = root / f"0000:{bus:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "local_cpulist").write_text(f"{cores}\n")
    return root


pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")


@pytest.fixture
def nvml(tmp_path, monkeypatch):
    """A stand-in for NVML, and a made-up `/sys`: GPU `n`, or the one called `GPU-n`, is near core `n` only."""
    info = tmp_path / "nvidia_ml_py-99.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-ml-py\nVersion: 99.0\n")
    (tmp_path / "pynvml.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    log: list[str] = []
    module = types.ModuleType("pynvml")
    module.__spec__ = types.SimpleNamespace(name="pynvml")
    module.log = log
    module.NVMLError = type("NVMLError", (Exception,), {})
    module.nvmlInit = lambda: log.append("init")
    module.nvmlShutdown = lambda: log.append("shutdown")
    module.nvmlDeviceGetHandleByIndex = lambda index: index
    module.nvmlDeviceGetHandleByUUID = lambda name: int(name.removeprefix("GPU-"))
    module.nvmlDeviceGetPciInfo = lambda handle: types.SimpleNamespace(busId=f"00000000:{handle:02X}:00.0")
    num_cores = max(os.sched_getaffinity(0)) + 1
    made_up = devices(tmp_path / "devices", cores_of_gpus={number: number for number in range(num_cores)})
    monkeypatch.setattr(affinity, "DEVICES", made_up)
    module.cores_of_gpus = lambda cores: monkeypatch.setattr(
        affinity, "DEVICES", devices(tmp_path / "other", cores_of_gpus=cores)
    )
    monkeypatch.setitem(sys.modules, "pynvml", module)
    cores = os.sched_getaffinity(0)
    set_numa_affinity.cache_clear()
    with patch_environment(CUDA_VISIBLE_DEVICES=None, ACCELERATE_DEBUG_MODE=None):
        yield module
    os.sched_setaffinity(0, cores)
    set_numa_affinity.cache_clear()


def test_a_process_is_bound_to_the_cores_near_its_gpu(nvml, capfd):
    core = max(os.sched_getaffinity(0))
    override_numa_affinity(core)
    assert os.sched_getaffinity(0) == {core}
    assert nvml.log == ["init", "shutdown"]
    assert capfd.readouterr().out == ""


def test_set_binds_once_and_override_again(nvml):
    first, *others = sorted(os.sched_getaffinity(0))
    set_numa_affinity(first)
    os.sched_setaffinity(0, {first, *others})
    set_numa_affinity(first)
    assert os.sched_getaffinity(0) == {first, *others}
    override_numa_affinity(first)
    assert os.sched_getaffinity(0) == {first}


@pytest.mark.parametrize("form", ["{0}", "GPU-{0}"])
def test_hidden_gpus_are_not_counted(nvml, form):
    core = max(os.sched_getaffinity(0))
    with patch_environment(CUDA_VISIBLE_DEVICES=form.format(core)):
        override_numa_affinity(0)
    assert os.sched_getaffinity(0) == {core}


def test_a_process_without_a_gpu_is_an_error(nvml):
    with patch_environment(CUDA_VISIBLE_DEVICES="0"):
        with pytest.raises(
            ConfigError, match="Process 1 of this machine has no GPU: `CUDA_VISIBLE_DEVICES` is `0`"
        ):
            override_numa_affinity(1)
    assert nvml.log == ["init", "shutdown"]


def test_cores_that_are_closed_to_the_process_are_an_error_and_change_nothing(nvml):
    open_cores = os.sched_getaffinity(0)
    nvml.cores_of_gpus({0: "1000-1003"})
    with pytest.raises(NotAvailableError, match="None of the cores near GPU 0 is open to this process"):
        override_numa_affinity(0)
    assert os.sched_getaffinity(0) == open_cores


def test_verbose_names_which_cores_and_follows_debug_mode(nvml, capfd):
    core = min(os.sched_getaffinity(0))
    with patch_environment(ACCELERATE_DEBUG_MODE="1"):
        override_numa_affinity(core)
        assert capfd.readouterr().out == f"Process {core} runs on 1 cores: [{core}]\n"
        override_numa_affinity(core, verbose=False)
    assert capfd.readouterr().out == ""


@pytest.mark.usefixtures("nothing_installed")
def test_without_nvml_a_hint_is_given():
    with pytest.raises(
        NotAvailableError, match="needs `pynvml`. `nvidia-ml-py` is not installed. Run `pip install"
    ):
        affinity.override_numa_affinity(0)


def test_cpu_information_is_the_topology_of_the_process_that_started_this_one():
    with clear_environment():
        assert get_cpu_distributed_information() == CPUInformation()
        export({"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"})
        assert get_cpu_distributed_information() == CPUInformation(3, 4, 1, 2)


@pytest.mark.parametrize("cores", ["", "0-100000"], ids=["of a node of memory alone", "all"])
def test_a_gpu_that_is_near_to_no_cores_or_all_leaves_the_process_as_it_is(nvml, capfd, cores):
    before = os.sched_getaffinity(0)
    nvml.cores_of_gpus({0: cores})
    override_numa_affinity(0, verbose=True)
    assert os.sched_getaffinity(0) == before
    assert f"runs on {len(before)} cores" in capfd.readouterr().out


def test_cores_are_read_from_a_list_of_ranges(nvml):
    nvml.cores_of_gpus({0x17: "0-3,8"})
    assert affinity.cores_near("0000:17:00.0") == {0, 1, 2, 3, 8}


def test_a_system_that_reports_no_cores_is_an_error(nvml):
    with pytest.raises(
        NotAvailableError,
        match="does not report which cores .*local_cpulist.*Set `enable_cpu_affinity` to false",
    ):
        affinity.cores_near("0000:ff:00.0")


def test_older_bindings_of_nvml_give_bytes(nvml):
    core = max(os.sched_getaffinity(0))
    nvml.nvmlDeviceGetPciInfo = lambda handle: types.SimpleNamespace(busId=f"0000:{handle:02X}:00.0".encode())
    override_numa_affinity(core)
    assert os.sched_getaffinity(0) == {core}


def test_the_setting_binds_a_run_and_is_off_by_default(nvml, monkeypatch):
    bound = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: bound.append(cores))
    PartialState(cpu=True)
    assert bound == []
    PartialState._reset_state()
    monkeypatch.setenv("ACCELERATE_CPU_AFFINITY", "1")
    PartialState(cpu=True)
    assert bound == [{0} & os.sched_getaffinity(0)]


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetHandleByIndex"])
def test_a_driver_that_does_not_answer_is_named_with_what_to_do(nvml, monkeypatch, function):
    def fail(*args):
        raise nvml.NVMLError("NVML Shared Library Not Found")

    monkeypatch.setattr(nvml, function, fail)
    with pytest.raises(
        NotAvailableError, match=r"where GPU 0 is: NVML Shared .*`enable_cpu_affinity` to false"
    ):
        override_numa_affinity(0)
