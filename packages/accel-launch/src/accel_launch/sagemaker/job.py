"""A SageMaker job as plain data, from a request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accel_launch.installation import INSTALL_FROM, PACKAGES, least_versions, release, wheels_in
from accel_launch.launchers.relaunch import OF_THIS_MACHINE, public_variables
from accel_launch.options import OPTIONS
from accel_launch.request import LaunchRequest
from accel_launch.sagemaker.inputs import hyperparameters_of, pairs_of
from accel_state.environment import find_setting
from accel_state.errors import ConfigError

# torchrun on each machine; Amazon's own library ends with PyTorch 2.3.
_DISTRIBUTIONS: Mapping[str, Any] = {"NO": None, "DATA_PARALLEL": {"torch_distributed": {"enabled": True}}}


def job_of(request: LaunchRequest) -> dict[str, Any]:
    """Return the job: ``profile`` and ``region`` to sign in, what the ``estimator`` and its ``fit`` get.

    Neither a key nor a secret is part of it.

    Raises:
        ConfigError: If something is missing, or SageMaker cannot do what is asked for.
    """
    kind = str(request.config.values.get("distributed_type") or "NO")
    if kind not in _DISTRIBUTIONS:
        raise ConfigError(
            f"`distributed_type` is `{kind}`, which has no launcher on SageMaker. Use `DATA_PARALLEL` or `NO`."
        )
    metrics = _pairs(request, "sagemaker_metrics_file", "the patterns of its metrics")
    inputs = _pairs(request, "sagemaker_inputs_file", "the places of its channels")
    estimator = {
        **_program(request),
        "role": _required(request, "sagemaker_role"),
        "instance_type": _required(request, "sagemaker_instance_type"),
        "instance_count": request.num_machines,
        "base_job_name": request.value("sagemaker_job_name"),
        "image_uri": request.value("sagemaker_image_uri"),
        "py_version": request.value("sagemaker_py_version"),
        "pytorch_version": request.value("sagemaker_pytorch_version"),
        "transformers_version": request.value("sagemaker_transformers_version"),
        "debugger_hook_config": False,
        "distribution": _DISTRIBUTIONS[kind],
        "environment": _environ(request, kind),
        "metric_definitions": [{"Name": name, "Regex": pattern} for name, pattern in metrics] or None,
    }
    estimator |= request.config.values.get("additional_args") or {}
    _check_versions(estimator)
    return {
        "profile": request.value("sagemaker_profile"),
        "region": request.value("sagemaker_region"),
        "estimator": {name: value for name, value in estimator.items() if value is not None},
        "requirements": _requirements(Path(str(estimator["source_dir"])), image=estimator["image_uri"]),
        "fit": {"inputs": dict(inputs)} if inputs else {},
    }


def _pairs(request: LaunchRequest, setting: str, what: str) -> list[tuple[str, str]]:
    file: str | None = request.value(setting)
    return pairs_of(request.cwd / file, what) if file else []


def _check_versions(estimator: Mapping[str, Any]) -> None:
    """Refuse a container that cannot run accel; what a container of one's own holds is not known.

    Raises:
        ConfigError: With the versions that can.
    """
    if estimator.get("image_uri"):
        return
    for key, least in zip(("py_version", "pytorch_version"), least_versions(), strict=True):
        if release(str(estimator[key])) < least:
            raise ConfigError(
                f"`{key}` in the config file is `{estimator[key]}`, but accel needs "
                f"{'.'.join(map(str, least))} or newer. Take `py_version`, `pytorch_version` and "
                "`transformers_version` out of the file, or name a container of your own with `image_uri`."
            )


def _requirements(folder: Path, *, image: str | None) -> str | None:
    """Return the `requirements.txt` that installs accel from wheels in ``folder``.

    None if the one of the folder already does, or if the user's container is expected to have accel.

    Raises:
        ConfigError: If accel would come from an index, or if there are no wheels.
    """
    file = folder / "requirements.txt"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    ours = [line for line in map(str.strip, lines) if re.match(r"(?i)(\S*/)?accel([-_]|\b)", line)]
    for line in ours:
        if not re.search(r"[/@]|\.whl", line.partition("#")[0]):
            raise ConfigError(
                f"`{line}` in `{file}` would be installed from an index, where the name may be another "
                f"project's. Name a file or an address in its place: `./NAME.whl` next to it, from {INSTALL_FROM}."
            )
    named = {
        name.replace("_", "-") for name in re.findall(r"\b(accel(?:_[a-z]+)?)-\d\S*\.whl", "\n".join(ours))
    }
    if named and (missing := [name for name in PACKAGES if name not in named]):
        raise ConfigError(
            f"`{file}` names wheels of accel, but none of `{'`, `'.join(missing)}`, which pip would look for on an "
            "index. Name one of each, or none: then those that are in the folder are installed."
        )
    if image or ours:
        return None
    wheels = [f"./{wheel.relative_to(folder).as_posix()}" for wheel in wheels_in(folder)]
    return "".join(f"{line}\n" for line in [*lines, *wheels])


def _program(request: LaunchRequest) -> dict[str, Any]:
    script, *arguments = request.command
    if request.kind != "script" or not script.endswith(".py"):
        raise ConfigError(
            f"SageMaker starts a Python script, which `{script}` is not. Leave `--module` and "
            "`--no_python` out and name a `.py` file."
        )
    path = Path(script)
    # All of the folder is uploaded.
    return {
        "entry_point": path.name,
        "source_dir": str(request.cwd / path.parent),
        "hyperparameters": hyperparameters_of(arguments),
    }


def _required(request: LaunchRequest, name: str) -> str:
    value: str | None = request.value(name)
    if not value:
        (key,) = (setting.config_key for setting in OPTIONS if setting.name == name)
        raise ConfigError(
            f"A SageMaker job needs `{key}` in the config file. Write one with `accel config`, or add the key."
        )
    return value


def _environ(request: LaunchRequest, kind: str) -> dict[str, str]:
    of_this_machine = {setting.variable for setting in OPTIONS if setting.name in OF_THIS_MACHINE}
    handed_on = {name: text for name, text in request.environ().items() if name not in of_this_machine}
    handed_on |= public_variables(
        request.named_variables(),
        where="everybody who may read the job would see its value",
        otherwise="Keep it in AWS Secrets Manager, for the script to read.",
    )
    return handed_on | {
        find_setting("use_sagemaker").variable: "true",
        find_setting("sagemaker_distributed_type").variable: kind,
        find_setting("mixed_precision").variable: str(request.value("mixed_precision")),
    }
