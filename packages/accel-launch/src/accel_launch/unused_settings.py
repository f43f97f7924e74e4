"""Settings that are given, but that this launch does not use."""

# ruff: noqa: E501 -- a row is a line
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from accel_launch.config.file import is_inert
from accel_launch.launchers import selection
from accel_launch.options import OPTIONS
from accel_launch.request import LaunchRequest
from accel_launch.resolution import SAGEMAKER
from accel_state.environment import Setting
from accel_state.environment.settings import IN_PLACE_OF_IPEX

# Keys that are read by something else than a setting of the launch: the engine, SageMaker, `accel tpu-config`.
_READ_ELSEWHERE = {"additional_args", "command_file", "commands", "compute_environment", "distributed_type"}


# fmt: off
CONDITIONS: Mapping[str, tuple[str, Callable[[LaunchRequest], bool] | None]] = {
    "ao": ("without `--fp8_backend ao`", lambda request: request.value("fp8_backend") in ("NO", "AO")),
    "bf16": ("without bf16", lambda request: request.value("mixed_precision") == "bf16"),
    "deepspeed": ("without `--use_deepspeed`", lambda request: bool(request.value("use_deepspeed"))),
    "dynamo_backend": ("without `--dynamo_backend`", lambda request: request.value("dynamo_backend") != "NO"),
    "fp8": ("without `--mixed_precision fp8`", lambda request: request.value("mixed_precision") == "fp8"),
    "fsdp": ("without `--use_fsdp`", lambda request: bool(request.value("use_fsdp"))),
    "gpu": ("on the CPU", lambda request: not request.value("use_cpu")),
    "hidden_xpu": ("any more: XPUs are found without it", None),
    "ipex": (f"any more: {IN_PLACE_OF_IPEX}", None),
    "machines": ("on one machine", lambda request: request.num_machines > 1 or request.outer_rank is not None),
    "megatron_lm": ("without `--use_megatron_lm`", lambda request: bool(request.value("use_megatron_lm"))),
    "msamp": ("any more: MS-AMP needs torch 2.1", None),
    "num_machines": ("on one machine", lambda request: request.num_machines > 1),
    "own_ranks": ("where another program starts the ranks", None),
    "parallelism_config": ("without `--use_parallelism_config`", lambda request: bool(request.value("use_parallelism_config"))),
    "rendezvous": ("where machines do not meet by `--rdzv_backend`", None),
    "sagemaker": ("outside of SageMaker", lambda request: request.engine == SAGEMAKER),
    "size_based_wrap": ("without `--fsdp_auto_wrap_policy SIZE_BASED_WRAP`", lambda request: request.value("fsdp_auto_wrap_policy") == "SIZE_BASED_WRAP"),
    "te": ("without `--fp8_backend te`", lambda request: request.value("fp8_backend") in ("NO", "TE")),
    "tpu": ("without `--tpu`", lambda request: bool(request.value("tpu"))),
    "tpu_pod": ("without `--tpu_cluster`", None),
}
"""The names in `needs` of settings: the end of "`--flag` has no effect …", and when that is not so, by any launcher.

A launcher fulfills those that its row names, too.
"""
# fmt: on


def unused_settings(request: LaunchRequest) -> list[str]:
    """Return one sentence for each flag and config key that asks for something this launch does not use."""
    launcher, file, values = selection.select_launcher(request), request.config.path, request.config.values
    unused = []
    for setting in OPTIONS:
        resolved, key = request.settings[setting.name], setting.config_key
        is_flag = resolved.source == "flag" and resolved.value not in setting.launch.unset_values
        is_in_file = (
            resolved.source == "config file" and key is not None and not is_inert(key, values.get(key))
        )
        if (is_flag or is_in_file) and (lacking := _lacking(setting, request, launcher)):
            given = f"`{setting.flag}`" if is_flag else f"`{key}` in `{file}`"
            unused.append(f"{given} has no effect {lacking}.")
    known = {setting.config_key for setting in OPTIONS} | _READ_ELSEWHERE
    strangers = (key for key, value in values.items() if key not in known and not is_inert(key, value))
    unused += [f"`{key}` in `{file}` has no effect on this launch." for key in strangers]
    return [*unused, *_overridden_gpu_ids(request)]


def shared_needs(settings: Iterable[Setting]) -> str | None:
    """Return what all of ``settings`` need, as in "without `--use_fsdp`"; None if there is no such thing."""
    needs = {_first_need(setting) for setting in settings}
    return needs.pop() if len(needs) == 1 else None


def _first_need(setting: Setting) -> str | None:
    if setting.name in selection.CHOSEN_BY_NAME:  # of other launchers, one of the settings asks for it
        return selection.without_launcher(selection.OWNERS[setting.name])
    return CONDITIONS[setting.launch.needs[0]][0] if setting.launch.needs else None


def _lacking(setting: Setting, request: LaunchRequest, launcher: selection.Launcher) -> str | None:
    """Return what the launch lacks to use a setting, None if nothing."""
    owner, row = selection.OWNERS.get(setting.name), selection.row_of(launcher)
    is_for_it = owner in (None, launcher.name) or (row is selection.OF_OTHERS and owner in selection.BUILT_IN)
    if owner is not None and not is_for_it:
        return selection.without_launcher(owner, request)
    for name in setting.launch.needs:
        otherwise, holds = CONDITIONS[name]
        if name not in row.uses and not (holds and holds(request)):
            return otherwise
    return row.place if setting.name in row.unused else None


def _overridden_gpu_ids(request: LaunchRequest) -> Iterator[str]:
    """Yield a sentence where a scheduler's choice of GPUs wins over that of the config file."""
    gpu_ids, asked = request.settings["gpu_ids"], request.config.values.get("gpu_ids")
    if gpu_ids.source == "environment" and asked not in (None, "all", gpu_ids.value):
        yield (
            f"`gpu_ids` in `{request.config.path}` is `{asked}`, but the variable `CUDA_VISIBLE_DEVICES` says "
            f"`{gpu_ids.value}`, which wins. Use `--gpu_ids` to choose others."
        )
