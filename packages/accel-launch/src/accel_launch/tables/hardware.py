"""Settings of the hardware that a launch uses."""

from __future__ import annotations

from accel_state.environment import Setting
from accel_state.environment.parsers import boolean, text

TITLE = "what to run on"

SETTINGS = (
    Setting(
        "gpu_ids",
        "CUDA_VISIBLE_DEVICES",
        text,
        None,
        "GPUs of this machine to use, such as `0,2`.",
        flag="--gpu_ids",
        config_key="gpu_ids",
    ),
    Setting(
        "multi_gpu",
        "",
        boolean,
        False,
        "Run one process on each GPU.",
        flag="--multi_gpu",
    ),
    Setting(
        "tpu",
        "",
        boolean,
        False,
        "Run on a TPU.",
        flag="--tpu",
    ),
    Setting(
        "ipex",
        "",
        boolean,
        False,
        "Has no effect: what the Intel extension did is part of PyTorch now.",
        flag="--ipex",
        config_key="ipex_config.ipex",
    ),
    Setting(
        "use_xpu",
        "",
        boolean,
        False,
        "Has no effect: XPUs are found without it.",
        flag="--use_xpu",
        config_key="ipex_config.use_xpu",
    ),
)
