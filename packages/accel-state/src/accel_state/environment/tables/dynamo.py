"""Settings of `torch.compile`."""

from __future__ import annotations

from accel_state.enums import DynamoBackend
from accel_state.environment.parsers import boolean, choice
from accel_state.environment.setting import Setting

TITLE = "Compilation"

SETTINGS = (
    Setting(
        "dynamo_backend",
        "ACCELERATE_DYNAMO_BACKEND",
        choice(*DynamoBackend.list()),
        "NO",
        "Compiler that `torch.compile` hands the model to.",
        flag="--dynamo_backend",
        config_key="dynamo_config.dynamo_backend",
    ),
    Setting(
        "dynamo_mode",
        "ACCELERATE_DYNAMO_MODE",
        choice("default", "reduce-overhead", "max-autotune"),
        "default",
        "What the compiler optimises for.",
        flag="--dynamo_mode",
        config_key="dynamo_config.dynamo_mode",
    ),
    Setting(
        "dynamo_use_fullgraph",
        "ACCELERATE_DYNAMO_USE_FULLGRAPH",
        boolean,
        False,
        "Fail where the model cannot be captured as one graph.",
        flag="--dynamo_use_fullgraph",
        config_key="dynamo_config.dynamo_use_fullgraph",
    ),
    Setting(
        "dynamo_use_dynamic",
        "ACCELERATE_DYNAMO_USE_DYNAMIC",
        boolean,
        False,
        "Compile for changing shapes.",
        flag="--dynamo_use_dynamic",
        config_key="dynamo_config.dynamo_use_dynamic",
    ),
    Setting(
        "dynamo_use_regional_compilation",
        "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION",
        boolean,
        False,
        "Compile the repeated blocks of the model one by one, which starts sooner.",
        flag="--dynamo_use_regional_compilation",
        config_key="dynamo_config.dynamo_use_regional_compilation",
    ),
)
