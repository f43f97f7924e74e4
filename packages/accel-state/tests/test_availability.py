"""Checks of packages, on made-up installations, and of devices, on stand-ins for the modules of vendors."""

from __future__ import annotations

import inspect
import platform
import sys
import types

import pytest
import torch

from accel_state import availability
from accel_state.availability import deepspeed_required, torchao_required, why_not
from accel_state.devices import current_device_backend
from accel_state.devices.vendors import find_vendor, known_vendors
from accel_state.environment import patch_environment, variable
from accel_state.errors import ConfigError, NotAvailableError, UnknownNameError

# Every check that users' code calls, with its parameters.
SIGNATURES = {
    "is_bnb_available": "(min_version=None)",
    "is_numpy_available": "(min_version='1.25.0')",
} | dict.fromkeys(
    (
        f"is_{name}_available"
        for name in [
            "4bit_bnb",
            "8bit_bnb",
            "aim",
            "amdsmi",
            "bitsandbytes_multi_backend",
            "boto3",
            "clearml",
            "comet_ml",
            "datasets",
            "deepspeed",
            "dvclive",
            "fp8",
            "import_timer",
            "lomo",
            "matplotlib",
            "megatron_lm",
            "mlflow",
            "msamp",
            "pandas",
            "peft",
            "pippy",
            "pynvml",
            "pytest",
            "rich",
            "sagemaker",
            "schedulefree",
            "swanlab",
            "tensorboard",
            "timm",
            "torchao",
            "torchdata",
            "torchdata_stateful_dataloader",
            "torchvision",
            "tqdm",
            "trackio",
            "transformer_engine",
            "transformers",
            "triton",
            "wandb",
            "weights_only",
        ]
    ),
    "()",
)


def install(folder, distribution, version, module):
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (folder / module).mkdir()
    (folder / module / "__init__.py").write_text("raise AssertionError('imported')\n")


@pytest.mark.parametrize("name", SIGNATURES)
def test_each_check_has_the_known_signature_and_answers_yes_or_no(name):
    check = getattr(availability, name)
    bare = inspect.signature(check).replace(return_annotation=inspect.Signature.empty)
    bare = bare.replace(
        parameters=[one.replace(annotation=inspect.Parameter.empty) for one in bare.parameters.values()]
    )
    assert str(bare) == SIGNATURES[name]
    assert check.__name__ == name
    assert check.__doc__
    assert check() in (True, False)


@pytest.mark.parametrize("name", SIGNATURES)
def test_check_and_reason_agree(name):
    assert getattr(availability, name)() is (why_not(name) is None)


def test_what_the_tests_themselves_need_is_available():
    assert availability.is_pytest_available()
    assert availability.is_weights_only_available()
    assert availability.is_pippy_available()


@pytest.mark.usefixtures("nothing_installed")
def test_a_package_becomes_available_by_being_installed_and_is_not_imported(tmp_path, monkeypatch):
    assert not availability.is_wandb_available()
    install(tmp_path, "wandb", "1.0", "wandb")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert availability.is_wandb_available()


@pytest.mark.parametrize(
    ("version", "four_bit", "eight_bit", "multi_backend"),
    [("0.30.0", False, False, False), ("0.38.0", False, True, False), ("0.46.0", True, True, True)],
)
def test_bitsandbytes_is_judged_by_its_version(
    tmp_path, monkeypatch, version, four_bit, eight_bit, multi_backend
):
    install(tmp_path, "bitsandbytes", version, "bitsandbytes")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert availability.is_bnb_available()
    assert availability.is_4bit_bnb_available() is four_bit
    assert availability.is_8bit_bnb_available() is eight_bit
    assert availability.is_bitsandbytes_multi_backend_available() is multi_backend
    assert availability.is_bnb_available(min_version="0.45.0") is multi_backend


@pytest.mark.usefixtures("nothing_installed")
def test_numpy_is_judged_by_the_version_requested(tmp_path, monkeypatch):
    install(tmp_path, "numpy", "1.26.4", "numpy")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert availability.is_numpy_available(min_version="1.26")
    assert not availability.is_numpy_available(min_version="1.27")


def test_rich_has_to_be_requested(tmp_path, monkeypatch):
    install(tmp_path, "rich", "99.0", "rich")
    monkeypatch.syspath_prepend(str(tmp_path))
    with patch_environment(ACCELERATE_ENABLE_RICH="1"):
        assert availability.is_rich_available()
    with patch_environment(ACCELERATE_ENABLE_RICH=None):
        assert not availability.is_rich_available()
        assert "Set `ACCELERATE_ENABLE_RICH=true`" in why_not("rich")


def test_one_library_is_enough_for_fp8(tmp_path, monkeypatch):
    install(tmp_path, "torchao", "99.0", "torchao")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert availability.is_fp8_available()


def test_tensorboardx_will_do_for_tensorboard(tmp_path, monkeypatch):
    install(tmp_path, "tensorboardX", "2.6", "tensorboardX")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert availability.is_tensorboard_available()


@pytest.fixture
def fake_npu(tmp_path, monkeypatch):
    """A vendor's package as torch knows it: importing `torch_npu` puts `torch.npu` there."""
    info = tmp_path / "torch_npu-2.13.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-npu\nVersion: 2.13.0\n")
    (tmp_path / "torch_npu.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = types.SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 0, is_bf16_supported=lambda: False
    )
    monkeypatch.setattr(torch, "npu", module, raising=False)
    yield module
    sys.modules.pop("torch_npu", None)


def test_a_vendors_device_is_available_when_its_module_reports_it(fake_npu):
    assert availability.is_npu_available()
    assert why_not("npu") is None
    fake_npu.is_available = lambda: False
    assert not availability.is_npu_available()
    assert why_not("npu") == "`torch.npu` finds no Ascend NPU."


def test_check_device_counts_devices(fake_npu):
    assert not availability.is_npu_available(check_device=True)
    fake_npu.device_count = lambda: 2
    assert availability.is_npu_available(check_device=True)


def test_a_package_that_brings_no_torch_module_is_distinguished(fake_npu, monkeypatch):
    monkeypatch.delattr(torch, "npu")
    assert why_not("npu") == "`torch_npu` was imported, but `torch.npu` does not exist."


@pytest.mark.parametrize(
    "name", [vendor.name for vendor in known_vendors() if vendor.plugin and vendor.name != "xla"]
)
def test_without_the_vendors_package_the_answer_is_no_and_explains_what_to_install(name):
    reason = why_not(name)
    if reason is None:
        pytest.skip("needs a machine without an accelerator")
    check = getattr(availability, f"is_{name}_available")
    assert check() is False
    assert reason.startswith(f"No {find_vendor(name).label}: `")
    assert "is not installed. Run `pip install" in reason


def test_cuda_is_queried_without_initialising_it_and_the_variable_is_put_back(monkeypatch):
    before = variable("PYTORCH_NVML_BASED_CUDA_CHECK")
    seen = []
    monkeypatch.setattr(
        torch.cuda, "is_available", lambda: seen.append(variable("PYTORCH_NVML_BASED_CUDA_CHECK")) or True
    )
    assert availability.is_cuda_available()
    assert seen == ["1"]
    assert variable("PYTORCH_NVML_BASED_CUDA_CHECK") == before


def test_choosing_a_device_queries_the_same_way(monkeypatch):
    """As `release_memory()` does in a notebook, before the processes are forked."""
    seen = []
    monkeypatch.setattr(
        torch.cuda, "is_available", lambda: seen.append(variable("PYTORCH_NVML_BASED_CUDA_CHECK")) or False
    )
    current_device_backend()
    assert seen == ["1"]


def test_without_cuda_the_reason_distinguishes_build_from_driver(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    assert "is built without CUDA and ROCm" in why_not("cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert "finds no CUDA device" in why_not("cuda")


def test_rocm_is_a_gpu_of_a_torch_built_for_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert availability.is_rocm_available()
    monkeypatch.setattr(torch.version, "hip", None)
    assert not availability.is_rocm_available()


def test_mps_needs_the_version_requested():
    assert availability.is_mps_available(min_version="99.0") is False


def test_xla_cannot_have_two_kinds_at_once():
    with pytest.raises(ConfigError, match="`check_is_tpu` and `check_is_gpu` cannot both be true"):
        availability.is_torch_xla_available(check_is_tpu=True, check_is_gpu=True)


def test_processes_of_this_torch_can_work_together():
    assert availability.is_torch_distributed_available() is torch.distributed.is_available()


def test_the_vendor_reports_bf16(fake_npu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert not availability.is_bf16_available()
    del fake_npu.is_bf16_supported
    assert availability.is_bf16_available()


def test_the_device_type_is_the_vendors(fake_npu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    assert availability.get_current_device_type() == ("npu", "MULTI_NPU")


@pytest.mark.parametrize(("capability", "fp8", "mxfp8"), [((8, 0), False, False), ((9, 0), True, False)])
def test_cuda_capability_decides_on_fp8(monkeypatch, capability, fp8, mxfp8):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert availability.check_cuda_fp8_capability() is fp8
    assert availability.is_transformer_engine_mxfp8_available() is mxfp8


def test_cuda_comes_first_among_device_types(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert availability.get_current_device_type() == ("cuda", "MULTI_GPU")


def test_a_machine_without_accelerator_computes_on_the_cpu_in_both_short_formats():
    if availability.get_current_device_type() != ("cpu", "MULTI_CPU"):
        pytest.skip("needs a machine without an accelerator")
    assert availability.is_bf16_available()
    assert availability.is_fp16_available()
    assert not availability.is_rocm_available()
    assert not availability.is_xccl_available()
    assert not availability.check_cuda_fp8_capability()


@pytest.mark.parametrize(
    ("decorator", "name"), [(deepspeed_required, "deepspeed"), (torchao_required, "torchao")]
)
@pytest.mark.usefixtures("nothing_installed")
def test_a_call_is_refused_where_the_package_is_missing(decorator, name):
    @decorator
    def train() -> str:
        raise AssertionError("called")

    with pytest.raises(
        NotAvailableError, match=rf"train` needs `{name}`. `{name}` is not installed. Run `pip install"
    ):
        train()
    assert train.__name__ == "train"


def test_a_call_goes_through_where_the_package_is_there(tmp_path, monkeypatch):
    info = tmp_path / "torchao-99.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torchao\nVersion: 99.0\n")
    (tmp_path / "torchao.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert torchao_required(lambda value, *, more: (value, more))(1, more=2) == (1, 2)


def test_what_is_available_has_no_reason_against_it():
    assert why_not("pytest") is None
    assert why_not("is_pytest_available") is None


def test_packages_and_devices_are_explained_alike():
    reason = why_not("sdaa")
    assert reason is None or reason.startswith("No Tecorigin SDAA")
    reason = why_not("lomo")
    assert reason is None or reason.startswith("`lomo-optim` is not installed")


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(
        UnknownNameError, match="Unknown availability check `deepsped`.*Did you mean `deepspeed`"
    ):
        why_not("deepsped")


def test_imported_modules_are_returned_in_the_order_requested():
    assert availability.are_libraries_initialized("pytest", "no_such_module", "sys") == ["pytest", "sys"]


def set_kernel(monkeypatch, system, release):
    uname = platform.uname()._replace(system=system, release=release)
    monkeypatch.setattr(platform, "uname", lambda: uname)


@pytest.mark.parametrize("release", ["5.4.0-150-generic", "4.18.0-553.el8", "3.10"])
def test_an_old_kernel_is_logged(monkeypatch, caplog, release):
    set_kernel(monkeypatch, "Linux", release)
    availability.check_os_kernel()
    assert f"The Linux kernel {release} is older than 5.5.0" in caplog.text


@pytest.mark.parametrize(("system", "release"), [("Linux", "5.5.0"), ("Linux", "6.1"), ("Darwin", "4.0.0")])
def test_other_kernels_are_not(monkeypatch, caplog, system, release):
    set_kernel(monkeypatch, system, release)
    availability.check_os_kernel()
    assert not caplog.records
