"""Settings of a run as a whole: precision, device, processes, debugging."""

from __future__ import annotations

from accel_state.environment.parsers import boolean, choice, count, text, unless, word_or_installed
from accel_state.environment.setting import Setting

TITLE = "The run"

SETTINGS = (
    Setting(
        "mixed_precision",
        "ACCELERATE_MIXED_PRECISION",
        word_or_installed("accel.precisions", "no", "fp16", "bf16", "fp8"),
        "no",
        "Number format of the forward pass.",
        flag="--mixed_precision",
        config_key="mixed_precision",
    ),
    Setting(
        "use_cpu",
        "ACCELERATE_USE_CPU",
        boolean,
        False,
        "Run on the CPU even where there is an accelerator.",
        flag="--cpu",
        config_key="use_cpu",
    ),
    Setting(
        "torch_device",
        "ACCELERATE_TORCH_DEVICE",
        text,
        None,
        "Device to use instead of the one that would be chosen, such as `cuda:1`.",
    ),
    Setting(
        "num_processes",
        "ACCELERATE_NUM_PROCESSES",
        count,
        None,
        "Number of processes in all.",
        flag="--num_processes",
        config_key="num_processes",
    ),
    Setting(
        "gradient_accumulation_steps",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
        # `auto` in a DeepSpeed run leaves the number to the script, as an unset variable does.
        unless("auto", count, None),
        None,
        "Number of batches whose gradients are added up before the optimizer steps.",
        flag="--gradient_accumulation_steps",
        config_key="deepspeed_config.gradient_accumulation_steps",
    ),
    Setting(
        "cpu_affinity",
        "ACCELERATE_CPU_AFFINITY",
        boolean,
        False,
        "Bind each process to the CPU cores near its GPU (NVIDIA only).",
        flag="--enable_cpu_affinity",
        config_key="enable_cpu_affinity",
    ),
    Setting(
        "debug_mode",
        "ACCELERATE_DEBUG_MODE",
        boolean,
        False,
        "Check before each collective that all ranks call it with values of the same shape.",
        flag="--debug",
        config_key="debug",
    ),
    Setting(
        "debug_rdv_file",
        "ACCELERATE_DEBUG_RDV_FILE",
        text,
        None,
        "File through which the processes of `debug_launcher` find each other.",
    ),
    Setting(
        "log_level",
        "ACCELERATE_LOG_LEVEL",
        choice("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"),
        None,
        "Level of the loggers that `get_logger` makes.",
    ),
    Setting(
        "enable_rich",
        "ACCELERATE_ENABLE_RICH",
        boolean,
        False,
        "Print tracebacks and progress through the package `rich`.",
    ),
    Setting(
        "init_include_buffers",
        "ACCELERATE_INIT_INCLUDE_BUFFERS",
        boolean,
        False,
        "Put buffers, not only parameters, on the meta device in `init_empty_weights`.",
    ),
    Setting(
        "bypass_device_map",
        "ACCELERATE_BYPASS_DEVICE_MAP",
        boolean,
        False,
        "Let a model that was loaded with a device map be prepared for a distributed run.",
    ),
    Setting(
        "use_sagemaker",
        "ACCELERATE_USE_SAGEMAKER",
        boolean,
        False,
        "The run is a SageMaker job; set by the launcher.",
    ),
    Setting(
        "sagemaker_distributed_type",
        "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE",
        choice("NO", "DATA_PARALLEL", "MODEL_PARALLEL"),
        "NO",
        "How the SageMaker job is distributed; set by the launcher.",
    ),
    Setting("hf_home", "HF_HOME", text, None, "Folder under which the default config file lies."),
)
