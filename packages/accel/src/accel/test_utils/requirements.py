"""Decorators that skip a test, a function or a class, where something it needs is missing.

What is needed is looked for when the test is decorated.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from accel.test_utils.hardware import get_backend
from accel_state import availability as has
from accel_state.environment import parse_flag_from_env
from accel_state.versions import is_torch_version

Test = TypeVar("Test", bound=Callable[..., Any])
Requirement = Callable[[Test], Test]


def requirement(is_met: Callable[[], bool], what: str) -> Requirement[Any]:
    """Return a decorator that skips a test, giving ``what`` it needs as the reason, unless ``is_met()``."""

    def decorate(test_case: Test) -> Test:
        return unittest.skipUnless(is_met(), f"test requires {what}")(test_case)

    return decorate


def _is_on(*devices: str, at_least: int = 1, at_most: int | None = None) -> bool:
    """Whether the device has one of these types, or is any accelerator, in that number."""
    name, count, _ = get_backend()
    is_wanted = name in devices if devices else name != "cpu"
    return is_wanted and at_least <= count and (at_most is None or count <= at_most)


def _has_tracker() -> bool:
    trackers = (
        has.is_wandb_available,
        has.is_tensorboard_available,
        has.is_trackio_available,
        has.is_swanlab_available,
    )
    return any(is_there() for is_there in trackers)


require_cpu = requirement(lambda: _is_on("cpu"), "a machine without an accelerator")
require_non_cpu = requirement(_is_on, "an accelerator")
require_single_device = requirement(lambda: _is_on(at_most=1), "a single accelerator")
require_multi_device = requirement(lambda: _is_on(at_least=2), "several accelerators")
require_cuda = requirement(lambda: _is_on("cuda"), "a GPU")
require_single_gpu = requirement(lambda: _is_on("cuda", at_most=1), "a single GPU")
require_multi_gpu = requirement(lambda: _is_on("cuda", at_least=2), "several GPUs")
require_cuda_or_hpu = requirement(lambda: _is_on("cuda", "hpu"), "a GPU or HPU")
require_cuda_or_xpu = requirement(lambda: _is_on("cuda", "xpu"), "a GPU or XPU")
require_multi_gpu_or_xpu = requirement(lambda: _is_on("cuda", "xpu", at_least=2), "several GPUs or XPUs")
require_xpu = requirement(has.is_xpu_available, "an XPU")
require_single_xpu = requirement(lambda: _is_on("xpu", at_most=1), "a single XPU")
require_multi_xpu = requirement(lambda: _is_on("xpu", at_least=2), "several XPUs")
require_non_xpu = requirement(lambda: not has.is_xpu_available(), "a machine without XPU")
require_non_hpu = requirement(lambda: not has.is_hpu_available(), "a machine without HPU")
require_non_torch_xla = requirement(
    lambda: not has.is_torch_xla_available(), "an environment without `torch_xla`"
)
require_mlu = requirement(has.is_mlu_available, "an MLU")
require_mps = requirement(has.is_mps_available, "a GPU of Apple")
require_musa = requirement(has.is_musa_available, "a MUSA device")
require_neuron = requirement(has.is_neuron_available, "Neuron cores")
require_npu = requirement(has.is_npu_available, "an NPU")
require_sdaa = requirement(has.is_sdaa_available, "an SDAA device")
require_tpu = requirement(lambda: has.is_torch_xla_available(check_is_tpu=True), "a TPU")
require_fp16 = requirement(has.is_fp16_available, "a device that computes in fp16")
require_fp8 = requirement(lambda: has.is_fp8_available() and not has.is_habana_gaudi1(), "a library for fp8")
require_fsdp2 = requirement(lambda: is_torch_version(">=", "2.6.0"), "torch 2.6 or newer")
require_tp = requirement(has.is_transformers_available, "`transformers`")
require_huggingface_suite = requirement(
    lambda: has.is_transformers_available() and has.is_datasets_available(), "`transformers` and `datasets`"
)
require_trackers = requirement(
    lambda: _has_tracker() and not has.is_comet_ml_available(), "a tracker, and no `comet_ml`"
)

require_aim = requirement(has.is_aim_available, "`aim`")
require_bnb = requirement(has.is_bnb_available, "`bitsandbytes`")
require_clearml = requirement(has.is_clearml_available, "`clearml`")
require_comet_ml = requirement(has.is_comet_ml_available, "`comet_ml`")
require_datasets = requirement(has.is_datasets_available, "`datasets`")
require_deepspeed = requirement(has.is_deepspeed_available, "`deepspeed`")
require_dvclive = requirement(has.is_dvclive_available, "`dvclive`")
require_import_timer = requirement(has.is_import_timer_available, "`import-timer`")
require_matplotlib = requirement(has.is_matplotlib_available, "`matplotlib`")
require_mlflow = requirement(has.is_mlflow_available, "`mlflow`")
require_pandas = requirement(has.is_pandas_available, "`pandas`")
require_peft = requirement(has.is_peft_available, "`peft`")
require_pippy = requirement(has.is_pippy_available, "pipelines in torch")
require_schedulefree = requirement(has.is_schedulefree_available, "`schedulefree`")
require_swanlab = requirement(has.is_swanlab_available, "`swanlab`")
require_tensorboard = requirement(has.is_tensorboard_available, "`tensorboard`")
require_timm = requirement(has.is_timm_available, "`timm`")
require_torchao = requirement(has.is_torchao_available, "`torchao`")
require_torchdata_stateful_dataloader = requirement(
    has.is_torchdata_stateful_dataloader_available, "`torchdata` with stateful loaders"
)
require_torchvision = requirement(has.is_torchvision_available, "`torchvision`")
require_trackio = requirement(has.is_trackio_available, "`trackio`")
require_transformer_engine = requirement(has.is_transformer_engine_available, "`transformer_engine`")
require_transformer_engine_mxfp8 = requirement(
    has.is_transformer_engine_mxfp8_available, "`transformer_engine` on a GPU that scales in blocks"
)
require_transformers = requirement(has.is_transformers_available, "`transformers`")
require_triton = requirement(has.is_triton_available, "`triton`")
require_wandb = requirement(has.is_wandb_available, "`wandb`")


def require_torch_min_version(test_case: Test | None = None, version: str | None = None) -> Any:
    """Skip a test if torch is older than ``version``; without a test, return the decorator."""
    if test_case is None:
        return partial(require_torch_min_version, version=version)
    return requirement(lambda: is_torch_version(">=", version or "0"), f"torch {version} or newer")(test_case)


def skip(test_case: Test) -> Test:
    """Skip a test."""
    return unittest.skip("test was skipped")(test_case)


def slow(test_case: Test) -> Test:
    """Skip a test unless the variable ``RUN_SLOW`` is set to a true value."""
    return unittest.skipUnless(parse_flag_from_env("RUN_SLOW"), "test is slow")(test_case)


def run_first(test_case: Test) -> Test:
    """Make the plugin pytest-order run a test before all others."""
    import pytest

    marked: Test = pytest.mark.order(1)(test_case)
    return marked
