"""Writing a config file, completely or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from accel_launch.options import OPTIONS
from accel_launch.settings import SETTINGS_OF_TOPIC
from accel_state.errors import ConfigError

# The keys of every new file, for a run on the user's machines and for a job on SageMaker.
BASIS_HERE: Mapping[str, Any] = MappingProxyType(
    {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": "NO",
        "downcast_bf16": False,
        "enable_cpu_affinity": False,
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": "no",
        "num_machines": 1,
        "num_processes": 1,
        "rdzv_backend": "static",
        "same_network": True,
        "tpu_env": [],
        "tpu_use_cluster": False,
        "tpu_use_sudo": False,
        "use_cpu": False,
    }
)
BASIS_SAGEMAKER: Mapping[str, Any] = MappingProxyType(
    {
        "compute_environment": "AMAZON_SAGEMAKER",
        "debug": False,
        "distributed_type": "NO",
        "mixed_precision": "no",
        "num_machines": 1,
        "use_cpu": False,
    }
    | {
        setting.config_key: setting.default
        for setting in SETTINGS_OF_TOPIC["sagemaker"]
        if setting.config_key is not None and setting.default is not None
    }
)
# Keys that files have as lists; several values of any other key are one text, with commas between them.
_WRITTEN_AS_LISTS = frozenset(
    {"commands", "fp8_config.override_linear_precision"}
    | {setting.config_key for setting in OPTIONS if setting.launch.separator is not None}
)
# How the newest files spell keys that have another name here.
_WRITTEN_AS = {"fsdp_config.fsdp_backward_prefetch_policy": "fsdp_config.fsdp_backward_prefetch"}


def new_document(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a new file for flat ``values``: sections nested, the keys of every new file filled in."""
    is_sagemaker = values.get("compute_environment") == "AMAZON_SAGEMAKER"
    return document_of({**(BASIS_SAGEMAKER if is_sagemaker else BASIS_HERE), **values})


def document_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a file for flat ``values``: sections nested, and no further key."""
    document: dict[str, Any] = {}
    for key, value in values.items():
        section, _, name = _WRITTEN_AS.get(key, key).rpartition(".")
        (document.setdefault(section, {}) if section else document)[name] = _plain(key, value)
    if isinstance(document.get("downcast_bf16"), bool):
        document["downcast_bf16"] = (
            "yes" if document["downcast_bf16"] else "no"
        )  # as files have always had it
    return document


def write_config(path: Path, document: Mapping[str, Any]) -> None:
    """Write a config file; ``.json`` in its name makes it JSON. A file that is there is replaced at once, or kept.

    A link stays one: its target is written.

    Raises:
        ConfigError: If it cannot be written there.
    """
    write_text(
        path,
        json.dumps(document, indent=2, sort_keys=True) + "\n"
        if path.suffix == ".json"
        else _as_yaml(document),
    )


def write_text(path: Path, text: str) -> None:
    """Write the text of a config file, as `write_config` does.

    Raises:
        ConfigError: If it cannot be written there.
    """
    target = path.resolve()
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        beside.replace(target)
    except OSError as error:
        raise ConfigError(
            f"The config file `{path}` cannot be written: {error.strerror}. Name another with `--config_file`."
        ) from error


def _plain(key: str, value: Any) -> Any:
    if not isinstance(value, (tuple, list)):
        return value
    return list(value) if key in _WRITTEN_AS_LISTS else ",".join(str(part) for part in value)


def _as_yaml(document: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(dict(document), allow_unicode=True)
