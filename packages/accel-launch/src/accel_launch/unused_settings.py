"""Settings that somebody gave, but that this launch does not act on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from accel_launch.config.keys import is_inert
from accel_launch.engine import SAGEMAKER
from accel_launch.launchers.outer_task import rank_of_outer_run
from accel_launch.launchers.selection import BUILT_IN, select_launcher
from accel_launch.options import OPTIONS, SETTINGS_OF_LAUNCHER
from accel_launch.request import LaunchRequest
from accel_state.environment import Setting
from accel_state.environment.settings import IN_PLACE_OF_IPEX

Test = Callable[[LaunchRequest, str], bool]
"""Looks at a request and the name of its launcher."""

# Keys that are read by something else than a setting of the launch: the engine, SageMaker, `accel tpu-config`.
_READ_ELSEWHERE = frozenset(
    {"additional_args", "command_file", "commands", "compute_environment", "distributed_type"}
)
_LAUNCHER_OF = {setting.name: name for name, table in SETTINGS_OF_LAUNCHER.items() for setting in table}


class Condition(NamedTuple):
    """What a setting needs; ``otherwise`` completes the sentence "`--flag` has no effect …"."""

    holds: Test
    otherwise: str


def _engine(name: str) -> Test:
    return lambda request, launcher: request.engine == name


def _value(setting: str, *values: object) -> Test:
    return lambda request, launcher: request.value(setting) in (values or (True,))


def _launcher(*names: str) -> Test:
    """Return whether one of these starts the run, or one of another package, of which nothing is known."""
    return lambda request, launcher: launcher in names or launcher not in BUILT_IN


def _has_machines(request: LaunchRequest, launcher: str) -> bool:
    is_told = request.num_machines > 1 or _launcher("slurm", "srun", "ssh")(request, launcher)
    return is_told or rank_of_outer_run(request.machine.environ) is not None


def _is_slurm_job(request: LaunchRequest, launcher: str) -> bool:
    """Whether a job is to be submitted, or this is one, which reads the file that submitted it."""
    return "SLURM_JOB_ID" in request.machine.environ or _launcher("slurm")(request, launcher)


CONDITIONS: Mapping[str, Condition] = {
    "ao": Condition(_value("fp8_backend", "NO", "AO"), "without `--fp8_backend ao`"),
    "bf16": Condition(_value("mixed_precision", "bf16"), "without bf16"),
    "deepspeed": Condition(_engine("DEEPSPEED"), "without `--use_deepspeed`"),
    "dynamo_backend": Condition(
        lambda request, launcher: request.value("dynamo_backend") != "NO", "without `--dynamo_backend`"
    ),
    "fp8": Condition(_value("mixed_precision", "fp8"), "without `--mixed_precision fp8`"),
    "fsdp": Condition(_engine("FSDP"), "without `--use_fsdp`"),
    "hidden_xpu": Condition(lambda request, launcher: False, "any more: XPUs are found without it"),
    "hosts": Condition(_launcher("ssh"), "without `--hosts` or `--hostfile`"),
    "ipex": Condition(lambda request, launcher: False, f"any more: {IN_PLACE_OF_IPEX}"),
    "machines": Condition(_has_machines, "on one machine"),
    "megatron_lm": Condition(_engine("MEGATRON_LM"), "without `--use_megatron_lm`"),
    "mpi_launcher": Condition(_launcher("mpi"), "with this `--launcher`"),
    "mpirun": Condition(_value("use_mpirun"), "without `--use_mpirun`"),
    "msamp": Condition(lambda request, launcher: False, "any more: MS-AMP needs torch 2.1"),
    "num_machines": Condition(lambda request, launcher: request.num_machines > 1, "on one machine"),
    "parallelism_config": Condition(_value("use_parallelism_config"), "without `--use_parallelism_config`"),
    "own_ranks": Condition(
        _launcher("local", "machines", "elastic", "slurm", "srun", "kubernetes"),
        "where another program starts the ranks",
    ),
    "rendezvous": Condition(
        _launcher("elastic", "slurm", "srun", "kubernetes"),
        "where machines do not meet by `--rdzv_backend`",
    ),
    "sagemaker": Condition(_engine(SAGEMAKER), "outside of SageMaker"),
    "size_based_wrap": Condition(
        _value("fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"),
        "without `--fsdp_auto_wrap_policy SIZE_BASED_WRAP`",
    ),
    "slurm_job": Condition(_is_slurm_job, "without `--slurm`"),
    "slurm_launcher": Condition(_launcher("slurm"), "with this `--launcher`"),
    "ssh_launcher": Condition(_launcher("ssh"), "with this `--launcher`"),
    "te": Condition(_value("fp8_backend", "NO", "TE"), "without `--fp8_backend te`"),
    "tpu": Condition(_engine("XLA"), "without `--tpu`"),
    "tpu_pod": Condition(_launcher("tpu-pod"), "without `--tpu_cluster`"),
}
"""What settings need, by the names in their column `needs`."""

PLACES: Mapping[str, Condition] = {
    "cpu": Condition(lambda request, launcher: not request.value("use_cpu"), "on the CPU"),
    "kubernetes": Condition(lambda request, launcher: launcher != "kubernetes", "on Kubernetes"),
    "ray": Condition(lambda request, launcher: launcher != "ray", "on Ray"),
    "sagemaker": Condition(lambda request, launcher: launcher != "sagemaker", "on SageMaker"),
    "tpu": Condition(lambda request, launcher: launcher not in ("tpu", "tpu-pod"), "on TPUs"),
}
"""Conditions that settings have no effect in some place, by the names in their column `not_on`."""


def unused_settings(request: LaunchRequest) -> list[str]:
    """Return one sentence for each flag and config key that asks for something this launch does not act on."""
    return [*_flags_and_keys(request), *_other_keys(request), *_outdone_gpu_ids(request)]


def shared_needs(settings: Iterable[Setting]) -> str | None:
    """Return what all of ``settings`` need, as in "without `--use_fsdp`"; None if there is no such thing."""
    needs = {_first_need(setting) for setting in settings}
    return needs.pop() if len(needs) == 1 else None


def _first_need(setting: Setting) -> str | None:
    if setting.name in _LAUNCHER_OF:
        return f"without `--launcher {_LAUNCHER_OF[setting.name]}`"
    return CONDITIONS[setting.launch.needs[0]].otherwise if setting.launch.needs else None


def _flags_and_keys(request: LaunchRequest) -> Iterator[str]:
    launcher = select_launcher(request).name
    for setting in OPTIONS:
        place = _place(request, setting)
        lacking = _lacking(setting, request, launcher) if place else None
        if lacking is not None:
            yield f"{place} has no effect {lacking}."


def _lacking(setting: Setting, request: LaunchRequest, launcher: str) -> str | None:
    """Return what the launch lacks to act on a setting, None if nothing."""
    owner = _LAUNCHER_OF.get(setting.name)
    if owner is not None:
        return None if launcher == owner else f"without `--launcher {owner}`"
    conditions = [
        *(CONDITIONS[name] for name in setting.launch.needs),
        *(PLACES[name] for name in setting.launch.not_on),
    ]
    return next(
        (condition.otherwise for condition in conditions if not condition.holds(request, launcher)), None
    )


def _place(request: LaunchRequest, setting: Setting) -> str | None:
    """Return where the setting was given, None if nowhere, or in the file with a value that asks for nothing."""
    source, key = request.settings[setting.name].source, setting.config_key
    if source == "flag":
        return f"`{setting.flag}`"
    if source == "config file" and key is not None and not is_inert(key, request.config.values.get(key)):
        return f"`{key}` in `{request.config.path}`"
    return None


def _outdone_gpu_ids(request: LaunchRequest) -> Iterator[str]:
    """Yield a sentence where a scheduler's choice of GPUs wins over that of the config file."""
    gpu_ids, asked = request.settings["gpu_ids"], request.config.values.get("gpu_ids")
    if gpu_ids.source == "environment" and asked not in (None, "all", gpu_ids.value):
        yield (
            f"`gpu_ids` in `{request.config.path}` is `{asked}`, but the variable `CUDA_VISIBLE_DEVICES` says "
            f"`{gpu_ids.value}`, which wins. Use `--gpu_ids` to choose others."
        )


def _other_keys(request: LaunchRequest) -> Iterator[str]:
    known = {setting.config_key for setting in OPTIONS} | _READ_ELSEWHERE
    for key, value in request.config.values.items():
        if key not in known and not is_inert(key, value):
            yield f"`{key}` in `{request.config.path}` has no effect on this launch."
