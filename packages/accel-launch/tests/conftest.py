from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from accel_launch.config.file import ConfigFile
from accel_launch.machine import Machine
from accel_launch.request import LaunchRequest, make_request
from accel_state.environment import Setting
from accel_state.environment.parsers import boolean

MakeRequest = Callable[..., LaunchRequest]


@pytest.fixture
def request_for() -> MakeRequest:
    """Make a request on an invented machine with 8 cores; flags are given by setting name."""

    def make(
        *command: str,
        flags: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        gpus: tuple[str, ...] = (),
        **rest: Any,
    ) -> LaunchRequest:
        return make_request(
            command or ("train.py",),
            flags=flags or {},
            config=ConfigFile(Path("config.yaml"), config or {}),
            machine=Machine(num_cpu_cores=8, gpus=gpus, environ=environ or {}),
            cwd=Path("/srv"),
            **rest,
        )

    return make


@pytest.fixture
def no_user_config(tmp_path: Path) -> dict[str, str]:
    """Variables under which the person who runs the tests has no config file, and Python the sources under test."""
    path = os.environ.get("PYTHONPATH", "")
    return {"HF_HOME": str(tmp_path / "hf_home"), "OMP_NUM_THREADS": "1", "PYTHONPATH": path}


@pytest.fixture
def texts_for() -> Callable[[Setting], tuple[str, ...]]:
    """Return texts that a setting accepts, each with another meaning; fewer than three where there are fewer."""
    return _texts_for


def _texts_for(setting: Setting) -> tuple[str, ...]:
    if setting.parse is boolean:
        return ("false", "true") if setting.default else ("true", "false")
    if setting.choices:
        words = [word for word in setting.choices if word != str(setting.default)]
        return (*words, str(setting.default)) if len(words) < 2 else tuple(words)
    special = _SPECIAL_TEXTS.get(setting.name)
    if special:
        return special
    numbers = ("3", "4", "5")
    if any(_accepts(setting, text) and not _accepts(setting, "word") for text in numbers):
        return numbers
    return ("first", "second", "third")


def _accepts(setting: Setting, text: str) -> bool:
    try:
        setting.parse(text)
    except (ValueError, KeyError):
        return False
    return True


_SPECIAL_TEXTS = {
    "fp8_override_linear_precision": ("true,false,true", "false,true,true", "true,true,false"),
    "kubernetes_cpu": ("4", "500m", "2.5"),
    "kubernetes_job_name": ("first", "second", "third"),
    "kubernetes_memory": ("64Gi", "1G", "100M"),
    "kubernetes_namespace": ("first", "second", "third"),
    "kubernetes_secrets": ("A=s:a,B=s:b", "C=t:c", "D=t:d"),
    "ray_resources": ("a=1", "b=2", "c=3"),
    "fsdp_reshard_after_forward": ("SHARD_GRAD_OP", "true", "false"),
    "rdzv_endpoint": ("a:1", "b:2", "c:3"),
    "rdzv_conf": ("a=1", "b=2", "c=3"),
    "tee": ("1", "2", "3"),
    "env": ("A=1,B=2", "C=3", "D=4"),
}
