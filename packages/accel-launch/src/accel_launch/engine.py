"""Which training engine a launch is for: what its flags say, else the environment, else the config file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from accel_launch.config.file import ConfigFile
from accel_launch.resolution import Resolved
from accel_state.enums import DistributedType, SageMakerDistributedType
from accel_state.errors import ConfigError, did_you_mean

SAGEMAKER = "AMAZON_SAGEMAKER"
_COMPUTE_ENVIRONMENTS = ("LOCAL_MACHINE", "CUSTOM_CLUSTER", SAGEMAKER)

# The switch of each engine, and what the config file calls it. Beside them, plain PyTorch needs no switch.
SWITCH_OF_ENGINE: Mapping[str, str] = {
    "DEEPSPEED": "use_deepspeed",
    "FSDP": "use_fsdp",
    "MEGATRON_LM": "use_megatron_lm",
    "XLA": "tpu",
}
_OLDER_NAMES = {"TPU": "XLA"}


def choose_engine(settings: Mapping[str, Resolved], config: ConfigFile) -> str | None:
    """Return the engine's name as in a config file, None for plain PyTorch.

    Raises:
        ConfigError: If two are asked for at once, or the config file names one that nobody knows.
    """
    for switch in ("multi_gpu", "tpu"):
        if _is_on(settings["use_cpu"], "flag") and _is_on(settings[switch], "flag"):
            raise ConfigError(f"`--cpu` and `--{switch}` contradict each other. Use one of them.")
    from_file = engine_of_config(config)  # looked at in any case, so that a wrong word is always refused
    for source in ("flag", "environment"):
        asked = [name for name, switch in SWITCH_OF_ENGINE.items() if _is_on(settings[switch], source)]
        if len(asked) > 1:
            switches = " and ".join(f"`--{SWITCH_OF_ENGINE[name]}`" for name in asked)
            raise ConfigError(f"{switches} contradict each other. Use one of them.")
        if asked:
            return asked[0]
    if _is_on(settings["multi_gpu"], "flag") or _refuses(settings, from_file):
        return None
    return from_file


def engine_of_config(config: ConfigFile) -> str | None:
    """Return the engine that a config file names: its place if that is a service, else its kind of training."""
    where = _word(config, "compute_environment", _COMPUTE_ENVIRONMENTS, default="LOCAL_MACHINE")
    if where == SAGEMAKER:
        _word(config, "distributed_type", SageMakerDistributedType.list(), default="NO")
        return where
    kinds = (*DistributedType.list(), *_OLDER_NAMES)
    kind = _word(config, "distributed_type", kinds, default="NO")
    kind = _OLDER_NAMES.get(kind, kind)
    return kind if kind in SWITCH_OF_ENGINE else None


def with_engine(
    settings: Mapping[str, Resolved], engine: str | None, config: ConfigFile
) -> dict[str, Resolved]:
    """Return the settings with the switch of ``engine`` on, those of the others off, and what else follows."""
    changed = dict(settings)
    for name, switch in SWITCH_OF_ENGINE.items():
        if name == engine and not settings[switch].value:
            changed[switch] = Resolved(True, "config file")
        elif name != engine and settings[switch].value:
            changed[switch] = replace(settings[switch], value=False)
    if not settings["use_parallelism_config"].value:
        sizes = [name for name in settings if re.fullmatch(r"parallelism_\w+_size", name)]
        in_file = (key for key in config.values if key.startswith("parallelism_config."))
        is_flag = any(settings[name].source == "flag" for name in sizes)
        if is_flag or any(config.values[key] is not None for key in in_file):
            changed["use_parallelism_config"] = Resolved(True, "flag" if is_flag else "config file")
    if settings["mpirun_hostfile"].value and not settings["use_mpirun"].value:
        changed["use_mpirun"] = Resolved(True, settings["mpirun_hostfile"].source)
    is_open = settings["rdzv_backend"].source == "default" and config.values.get("rdzv_backend") is None
    if is_open and not settings["same_network"].value and settings["num_machines"].value > 1:
        # Machines without a network of their own may not reach each other by the names that they give themselves.
        changed["rdzv_backend"] = Resolved("c10d", settings["same_network"].source)
    return changed


def _word(config: ConfigFile, key: str, known: tuple[str, ...] | list[str], *, default: str) -> str:
    given = config.values.get(key)
    if given is None or given is False:  # YAML reads a bare `NO` as false
        return default
    if given not in known:
        raise ConfigError(
            f"`{key}` in `{config.path}` is `{given}`, but it must be one of: {', '.join(known)}."
            f"{did_you_mean(str(given), known)}"
        )
    return str(given)


def _is_on(setting: Resolved, source: str) -> bool:
    return setting.source == source and bool(setting.value)


def _refuses(settings: Mapping[str, Resolved], engine: str | None) -> bool:
    """Tell whether the environment says no to the engine of the config file, as `ACCELERATE_USE_FSDP=false`."""
    switch = settings.get(SWITCH_OF_ENGINE.get(engine or "", ""))
    return switch is not None and switch.source == "environment" and not switch.value
