"""Settings that are given, but that this launch does not use."""

# ruff: noqa: E501 -- a row is a line

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from accel_launch.config.file import is_inert
from accel_launch.launchers.selection import (
    BUILT_IN,
    CHOSEN_BY_NAME,
    OWNERS,
    Launcher,
    row_of,
    select_launcher,
    without_launcher,
)
from accel_launch.options import OPTIONS
from accel_launch.request import LaunchRequest
from accel_launch.resolution import SAGEMAKER
from accel_state.environment import Setting
from accel_state.environment.settings import IN_PLACE_OF_IPEX

# Keys that are read by something else than a setting of the launch: the engine, SageMaker, `accel tpu-config`.
_READ_ELSEWHERE = frozenset(
    {"additional_args", "command_file", "commands", "compute_environment", "distributed_type"}
)


class Condition(NamedTuple):
    """What a setting needs; ``otherwise`` completes the sentence "`--flag` has no effect …".

    It holds where the launcher has its name in the column ``uses``, is of another package, or ``holds`` returns true.
    """

    otherwise: str
    holds: Callable[[LaunchRequest], bool] | None = None
    is_of_launcher: bool = False


def _engine(name: str, request: LaunchRequest) -> bool:
    return request.engine == name


def _value(setting: str, values: tuple[object, ...], request: LaunchRequest) -> bool:
    return request.value(setting) in values


def _has_machines(request: LaunchRequest) -> bool:
    return request.num_machines > 1 or request.outer_rank is not None


# fmt: off
CONDITIONS: Mapping[str, Condition] = {
    "ao": Condition("without `--fp8_backend ao`", partial(_value, "fp8_backend", ("NO", "AO"))),
    "bf16": Condition("without bf16", partial(_value, "mixed_precision", ("bf16",))),
    "deepspeed": Condition("without `--use_deepspeed`", partial(_engine, "DEEPSPEED")),
    "dynamo_backend": Condition("without `--dynamo_backend`", lambda request: request.value("dynamo_backend") != "NO"),
    "fp8": Condition("without `--mixed_precision fp8`", partial(_value, "mixed_precision", ("fp8",))),
    "fsdp": Condition("without `--use_fsdp`", partial(_engine, "FSDP")),
    "gpu": Condition("on the CPU", partial(_value, "use_cpu", (False,))),
    "hidden_xpu": Condition("any more: XPUs are found without it"),
    "ipex": Condition(f"any more: {IN_PLACE_OF_IPEX}"),
    "machines": Condition("on one machine", _has_machines, is_of_launcher=True),
    "megatron_lm": Condition("without `--use_megatron_lm`", partial(_engine, "MEGATRON_LM")),
    "msamp": Condition("any more: MS-AMP needs torch 2.1"),
    "num_machines": Condition("on one machine", lambda request: request.num_machines > 1),
    "parallelism_config": Condition("without `--use_parallelism_config`", partial(_value, "use_parallelism_config", (True,))),
    "own_ranks": Condition("where another program starts the ranks", is_of_launcher=True),
    "rendezvous": Condition("where machines do not meet by `--rdzv_backend`", is_of_launcher=True),
    "sagemaker": Condition("outside of SageMaker", partial(_engine, SAGEMAKER)),
    "size_based_wrap": Condition("without `--fsdp_auto_wrap_policy SIZE_BASED_WRAP`", partial(_value, "fsdp_auto_wrap_policy", ("SIZE_BASED_WRAP",))),
    "te": Condition("without `--fp8_backend te`", partial(_value, "fp8_backend", ("NO", "TE"))),
    "tpu": Condition("without `--tpu`", partial(_engine, "XLA")),
    "tpu_pod": Condition("without `--tpu_cluster`", is_of_launcher=True),
}
"""What settings need, by the names in their column `needs`."""
# fmt: on


def unused_settings(request: LaunchRequest) -> list[str]:
    """Return one sentence for each flag and config key that asks for something this launch does not use."""
    return [
        *_flags_and_keys(request, select_launcher(request)),
        *_other_keys(request),
        *_overridden_gpu_ids(request),
    ]


def shared_needs(settings: Iterable[Setting]) -> str | None:
    """Return what all of ``settings`` need, as in "without `--use_fsdp`"; None if there is no such thing."""
    needs = {_first_need(setting) for setting in settings}
    return needs.pop() if len(needs) == 1 else None


def _first_need(setting: Setting) -> str | None:
    if setting.name in CHOSEN_BY_NAME:  # of other launchers, one of the settings asks for it
        return without_launcher(OWNERS[setting.name])
    return CONDITIONS[setting.launch.needs[0]].otherwise if setting.launch.needs else None


def _flags_and_keys(request: LaunchRequest, launcher: Launcher) -> Iterator[str]:
    for setting in OPTIONS:
        source = request.settings[setting.name].source
        given = f"`{setting.flag}`"
        if source == "config file":
            given = f"`{setting.config_key}` in `{request.config.path}`"
        if source == "flag" or (
            source == "config file"
            and setting.config_key is not None
            and not is_inert(setting.config_key, request.config.values.get(setting.config_key))
        ):
            lacking = _lacking(setting, request, launcher)
            if lacking is not None:
                yield f"{given} has no effect {lacking}."


def _lacking(setting: Setting, request: LaunchRequest, launcher: Launcher) -> str | None:
    """Return what the launch lacks to use a setting, None if nothing."""
    owner, row = OWNERS.get(setting.name), row_of(launcher)
    if owner is not None and owner != launcher.name and (row is not None or owner not in BUILT_IN):
        return without_launcher(owner, request)
    for name in setting.launch.needs:
        condition = CONDITIONS[name]
        is_used = condition.is_of_launcher and (row is None or name in row.uses)
        if not is_used and not (condition.holds is not None and condition.holds(request)):
            return condition.otherwise
    return row.place if row is not None and setting.name in row.unused else None


def _overridden_gpu_ids(request: LaunchRequest) -> Iterator[str]:
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
