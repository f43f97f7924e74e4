"""Handing a job to SageMaker through Amazon's SDK, which is imported here only."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from accel_launch.messages import complain, inform
from accel_state.environment import patch_environment
from accel_state.errors import LaunchError, NotAvailableError

_LOCAL = ("local", "local_gpu")
_INTERRUPTED = 130
_UNLISTED = {"2.9.0 5.3.0 py312": "2.9.0-transformers5.3.0-gpu-py312-cu130-ubuntu22.04"}
"""Tags of containers that the SDK does not list, by their versions of torch, transformers and Python."""
_LISTED = {"base_framework_version": "pytorch2.8.0", "version": "4.56.2", "py_version": "py312"}
"""The newest container that it does list."""


@patch_environment(SAGEMAKER_SUPPRESS_V2_WARNING="1")  # which version to use is our business
def submit(job: Mapping[str, Any], credentials: Mapping[str, str]) -> int:
    """Start ``job``, show what it writes until it ends, and return 0.

    An interrupt ends the log, not the job; a line shows how to stop the job.

    Args:
        job: What `job_of` made.
        credentials: Arguments of a session of `boto3` to sign in with, kept in memory only. Empty leaves it to the
            profile and to Amazon's own places.

    Raises:
        NotAvailableError: If the SDK is not installed.
        LaunchError: If Amazon refuses it, or the job fails.
    """
    sdk, boto3 = _imported("sagemaker"), _imported("boto3")
    failures = _failures()
    try:
        with tempfile.TemporaryDirectory(prefix="accel-sagemaker-") as folder:
            job = _with_requirements(job, Path(folder, "requirements.txt"))
            estimator = _estimator(sdk, boto3, job, credentials)
            asked = job["estimator"]
            inform(
                f"Starting `{asked['entry_point']}` on {asked['instance_count']} x {asked['instance_type']}."
            )
            return _follow(estimator, job["fit"])
    except failures as error:
        raise LaunchError(f"SageMaker could not run the job: {' '.join(str(error).split())}") from error


def _with_requirements(job: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
    """Return the job with its requirements in ``file``, which is uploaded with the script."""
    if job["requirements"] is None:
        return job
    file.write_text(job["requirements"], encoding="utf-8")
    estimator = dict(job["estimator"])
    estimator["dependencies"] = [*estimator.get("dependencies", ()), str(file)]
    return {**job, "estimator": estimator}


def _follow(estimator: Any, channels: Mapping[str, Any]) -> int:
    try:
        estimator.fit(**channels)
    except KeyboardInterrupt:
        name = estimator._current_job_name  # set before the job is created; the SDK has no public name for it
        complain(
            f"Interrupted. The job `{name}` may go on at SageMaker; to end it: "
            f"aws sagemaker stop-training-job --training-job-name {name}"
        )
        return _INTERRUPTED
    inform(f"The job has ended. Its model is at {estimator.model_data}")
    return 0


def _estimator(
    sdk: ModuleType, boto3: ModuleType, job: Mapping[str, Any], credentials: Mapping[str, str]
) -> Any:
    session = boto3.Session(profile_name=job["profile"], region_name=job["region"], **credentials)
    is_local = job["estimator"]["instance_type"] in _LOCAL
    settings = _settings()
    make_session = import_module("sagemaker.local").LocalSession if is_local else sdk.Session
    return import_module("sagemaker.huggingface").HuggingFace(
        sagemaker_session=make_session(boto_session=session, sagemaker_config=settings),
        **_with_container(job["estimator"], session.region_name),
    )


def _with_container(estimator: Mapping[str, Any], region: str) -> Mapping[str, Any]:
    """Return the arguments with the address of the container, where the SDK does not know it.

    It lists containers up to torch 2.8 (version 2.257.7), which is too old for accel. The newest of them tells the
    registry of the region. Delete this when it lists those of `_UNLISTED`.
    """
    versions = [str(estimator.get(f"{name}_version")) for name in ("pytorch", "transformers", "py")]
    tag = _UNLISTED.get(" ".join(versions))
    if tag is None or estimator.get("image_uri"):
        return estimator
    find = import_module("sagemaker.image_uris").retrieve
    instance = estimator["instance_type"]
    listed = find("huggingface", region, instance_type=instance, image_scope="training", **_LISTED)
    return {**estimator, "image_uri": f"{listed.rpartition(':')[0]}:{tag}"}


def _settings() -> dict[str, Any]:
    """Return the user's settings of the SDK; by default, without telemetry."""
    settings: dict[str, Any] = import_module("sagemaker.config").load_sagemaker_config() or {}
    settings.setdefault("SchemaVersion", "1.0")
    modules = settings.setdefault("SageMaker", {}).setdefault("PythonSDK", {}).setdefault("Modules", {})
    modules.setdefault("TelemetryOptOut", True)
    return settings


def _imported(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise NotAvailableError(
            f"A SageMaker job needs the package `{name}`, which cannot be imported: {error}. "
            "Run `pip install boto3 'sagemaker<3'`.",
            name=name,
        ) from error


def _failures() -> tuple[type[Exception], ...]:
    amazon, own = import_module("botocore.exceptions"), import_module("sagemaker.exceptions")
    # `ValueError`: how the SDK refuses versions, roles and the like.
    return (amazon.BotoCoreError, amazon.ClientError, own.UnexpectedStatusException, ValueError)
