"""A config file without a questionnaire: one that suits this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from accel_launch.config.file import config_folder
from accel_launch.config.writing import new_document, write_config
from accel_launch.machine import Accelerators, find_accelerators
from accel_launch.messages import show
from accel_state.environment import find_setting, snapshot

DEFAULT_LOCATION = "~/.cache/huggingface/accelerate/default_config.yaml"


def write_basic_config(mixed_precision: str = "no", save_location: str = DEFAULT_LOCATION) -> Path | bool:
    """Write a config file for this machine, one process for each accelerator, and return its path.

    A file that is there already is left alone: a line says so, and False is returned.

    Args:
        mixed_precision: ``no``, ``fp16``, ``bf16`` or ``fp8``.
        save_location: Where to write; left at its default, the user's own config file, which ``HF_HOME`` and
            ``XDG_CACHE_HOME`` may move.

    Raises:
        ConfigError: If the precision is none of these.
    """
    environ = snapshot()
    path = location_of(None if save_location == DEFAULT_LOCATION else save_location, environ=environ)
    precision = find_setting("mixed_precision").value_of(mixed_precision, source="mixed_precision")
    if path.is_file():
        show(f"There is a configuration at `{path}` already; it is left as it is.")
        return False
    write_config(path, new_document(basic_values(precision, find_accelerators(environ))))
    return path


def location_of(given: str | None, *, environ: Mapping[str, str]) -> Path:
    """Return where a config file is to be written: ``given``, or the user's own place."""
    return config_folder(environ) / "default_config.yaml" if given is None else Path(given).expanduser()


def basic_values(mixed_precision: str, accelerators: Accelerators) -> dict[str, object]:
    """Return what suits a machine with these accelerators."""
    num_gpus = len(accelerators.names)
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": accelerators.several if num_gpus > 1 else "NO",
        "mixed_precision": mixed_precision,
        "num_processes": max(1, num_gpus),
        "use_cpu": num_gpus == 0,
    }
