"""Constants of the launcher that other programs import; what a setting says already is read from it."""

from __future__ import annotations

from accel_launch.config.writing import BASIS_SAGEMAKER
from accel_launch.options import OPTIONS
from accel_state.enums import DynamoBackend

_CHOICES = {setting.name: list(setting.choices or ()) for setting in OPTIONS}

DEEPSPEED_MULTINODE_LAUNCHERS = _CHOICES["deepspeed_multinode_launcher"]
"""Ways in which DeepSpeed starts its ranks on several machines."""
DYNAMO_BACKENDS = [name for name in DynamoBackend.list() if name != "NO"]
"""Backends of `torch.compile`."""
TORCH_DYNAMO_MODES = _CHOICES["dynamo_mode"]
"""Modes of `torch.compile`."""
TORCH_LAUNCH_PARAMS = [
    "nnodes",
    "nproc_per_node",
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_id",
    "rdzv_conf",
    "standalone",
    "max_restarts",
    "monitor_interval",
    "start_method",
    "role",
    "module",
    "m",
    "no_python",
    "run_path",
    "log_dir",
    "r",
    "redirects",
    "t",
    "tee",
    "node_rank",
    "master_addr",
    "master_port",
]
"""Arguments of torchrun."""
ELASTIC_LOG_LINE_PREFIX_TEMPLATE_PYTORCH_VERSION = "2.2.0"
"""The release of torch from which torchrun takes a template for the beginning of log lines."""
SAGEMAKER_PYTHON_VERSION = BASIS_SAGEMAKER["py_version"]
SAGEMAKER_PYTORCH_VERSION = BASIS_SAGEMAKER["pytorch_version"]
SAGEMAKER_TRANSFORMERS_VERSION = BASIS_SAGEMAKER["transformers_version"]
SAGEMAKER_PARALLEL_EC2_INSTANCES = ["ml.p3.16xlarge", "ml.p3dn.24xlarge", "ml.p4dn.24xlarge"]
"""Instances of SageMaker that data parallel training can use."""
