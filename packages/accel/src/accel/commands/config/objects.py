"""A config file as an object, for scripts that look into one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from accel_launch.config.file import SECTIONS, find_config
from accel_launch.config.writing import BASIS_SAGEMAKER, write_config
from accel_launch.options import OPTIONS
from accel_launch.resolution import SAGEMAKER, engine_of_config, resolve
from accel_state.enums import ComputeEnvironment, DistributedType, SageMakerDistributedType
from accel_state.environment import Setting, snapshot
from accel_state.environment.parsers import boolean
from accel_state.errors import ConfigError


@dataclass
class BaseConfig:
    """What every config file says."""

    compute_environment: ComputeEnvironment
    distributed_type: DistributedType | SageMakerDistributedType
    mixed_precision: str
    use_cpu: bool
    debug: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the content of a file that says the same; what is None or empty is left out."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            key: value.value if isinstance(value, Enum) else value
            for key, value in values.items()
            if value is not None and value != {}
        }

    def to_yaml_file(self, yaml_file: str | os.PathLike[str]) -> None:
        """Write a config file in YAML; in JSON if the name ends in ``.json``.

        Raises:
            ConfigError: If it cannot be written there.
        """
        write_config(Path(yaml_file), self.to_dict())

    def to_json_file(self, json_file: str | os.PathLike[str]) -> None:
        """Write a config file in JSON, whatever its name."""
        Path(json_file).write_text(
            json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n", encoding="utf-8"
        )


@dataclass
class ClusterConfig(BaseConfig):
    """What a config file says of a run on machines of one's own; a section is a dict of its keys."""

    num_processes: int = -1
    machine_rank: int = 0
    num_machines: int = 1
    gpu_ids: str | None = None
    main_process_ip: str | None = None
    main_process_port: int | None = None
    rdzv_backend: str | None = "static"
    same_network: bool | None = False
    main_training_function: str = "main"
    enable_cpu_affinity: bool = False
    fp8_config: dict[str, Any] | None = None
    deepspeed_config: dict[str, Any] | None = None
    fsdp_config: dict[str, Any] | None = None
    parallelism_config: dict[str, Any] | None = None
    megatron_lm_config: dict[str, Any] | None = None
    mpirun_config: dict[str, Any] | None = None
    downcast_bf16: bool = False
    tpu_name: str | None = None
    tpu_zone: str | None = None
    tpu_use_cluster: bool = False
    tpu_use_sudo: bool = False
    command_file: str | None = None
    commands: list[str] | None = None
    tpu_vm: list[str] | None = None
    tpu_env: list[str] | None = None
    dynamo_config: dict[str, Any] | None = None


@dataclass
class SageMakerConfig(BaseConfig):
    """What a config file says of a job on Amazon SageMaker."""

    ec2_instance_type: str
    iam_role_name: str
    image_uri: str | None = None
    profile: str | None = None
    region: str = BASIS_SAGEMAKER["region"]
    num_machines: int = 1
    gpu_ids: str = "all"
    base_job_name: str = BASIS_SAGEMAKER["base_job_name"]
    pytorch_version: str = BASIS_SAGEMAKER["pytorch_version"]
    transformers_version: str = BASIS_SAGEMAKER["transformers_version"]
    py_version: str = BASIS_SAGEMAKER["py_version"]
    sagemaker_inputs_file: str | None = None
    sagemaker_metrics_file: str | None = None
    additional_args: dict[str, Any] | None = None
    dynamo_config: dict[str, Any] | None = None
    enable_cpu_affinity: bool = False


def load_config_from_file(config_file: str | None) -> ClusterConfig | SageMakerConfig:
    """Return the content of ``config_file``, or of the user's own config file if it is None.

    Raises:
        ConfigError: If there is no such file, or it cannot be understood.
    """
    config = find_config(config_file, environ=snapshot())
    if config.path is None:
        raise ConfigError("There is no config file. Write one with `accel config`, or name one.")
    engine = engine_of_config(config)
    values: dict[str, Any] = dict(_FALLBACKS) | _nested(config.values)
    values["compute_environment"] = ComputeEnvironment(values["compute_environment"])
    words = [setting for setting in OPTIONS if setting.config_key in values and _is_word(setting)]
    values |= {
        str(setting.config_key): resolved.value
        for setting, resolved in zip(
            words, resolve(words, flags={}, environ={}, config=config).values(), strict=True
        )
    }
    if engine == SAGEMAKER:
        values["distributed_type"] = SageMakerDistributedType(values["distributed_type"] or "NO")
        return _made(SageMakerConfig, values, where=str(config.path))
    kind = engine or values["distributed_type"] or "NO"
    values["distributed_type"] = DistributedType(kind)
    return _made(ClusterConfig, values, where=str(config.path))


_FALLBACKS = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "NO",
    "mixed_precision": "no",
    "use_cpu": False,
    "debug": False,
}
_Made = TypeVar("_Made", ClusterConfig, SageMakerConfig)


def _is_word(setting: Setting) -> bool:
    """Tell whether YAML may have read a setting's word as a truth value, or the reverse."""
    return setting.parse is boolean or "no" in (setting.choices or ())


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = key.rpartition(".")
        if section in SECTIONS:
            found.setdefault(section, {})[name] = value
        else:
            found[key] = value
    return found


def _made(kind: type[_Made], values: Mapping[str, Any], *, where: str) -> _Made:
    known = {field.name: value for field in fields(kind) if (value := values.get(field.name)) is not None}
    missing = [field.name for field in fields(kind) if field.default is MISSING and field.name not in known]
    if missing:
        raise ConfigError(
            f"`{where}` lacks {', '.join(f'`{name}`' for name in missing)}. Add that to the file."
        )
    return kind(**known)
