"""Who decides a setting (a flag, else the environment, else the config file), and the training engine that follows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from accel_launch.config.file import ConfigFile, is_unset
from accel_state.enums import DistributedType, SageMakerDistributedType
from accel_state.environment import Setting
from accel_state.errors import ConfigError, did_you_mean

Source = Literal["flag", "environment", "config file", "default"]


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


@dataclass(frozen=True, slots=True)
class Resolved:
    """The value of a setting, and who set it."""

    value: Any
    source: Source


def resolve(
    settings: Iterable[Setting], *, flags: Mapping[str, str], environ: Mapping[str, str], config: ConfigFile
) -> dict[str, Resolved]:
    """Return every setting's value by its name. Blank text counts as not given.

    Args:
        settings: What to look up.
        flags: Texts given on the command line, by the setting's name.
        environ: The launcher's environment.
        config: The config file.

    Raises:
        ConfigError: If the deciding text is not what its setting accepts; it names the flag, variable or key.
    """
    return {setting.name: _resolve_one(setting, flags, environ, config) for setting in settings}


def _resolve_one(
    setting: Setting, flags: Mapping[str, str], environ: Mapping[str, str], config: ConfigFile
) -> Resolved:
    if flags.get(setting.name, "").strip():
        return Resolved(setting.value_of(flags[setting.name], source=setting.flag), "flag")
    if environ.get(setting.variable, "").strip():
        return Resolved(setting.value_of(environ[setting.variable]), "environment")
    key = setting.config_key
    if key is not None and key in config.values and not is_unset(key, config.values[key]):
        text = _text_of(setting, config.values[key])
        if text.strip():
            return Resolved(setting.value_of(text, source=f"{key}` in `{config.path}"), "config file")
    return Resolved(setting.default, "default")


def _text_of(setting: Setting, value: Any) -> str:
    if value is False and any(choice.lower() == "no" for choice in setting.choices or ()):
        return "no"  # YAML reads a bare `no` as false
    return setting.text_of(value)


def decide(
    settings: Iterable[Setting], *, flags: Mapping[str, str], environ: Mapping[str, str], config: ConfigFile
) -> tuple[dict[str, Resolved], str | None]:
    """Return every setting's value as a launch uses it, with what follows from others, and the engine.

    Raises:
        ConfigError: If a value is wrong, or two contradict each other.
    """
    resolved = resolve(settings, flags=flags, environ=environ, config=config)
    engine = choose_engine(resolved, config)
    return with_engine(resolved, engine, config), engine


def choose_engine(settings: Mapping[str, Resolved], config: ConfigFile) -> str | None:
    """Return the engine's name as in a config file, None for plain PyTorch.

    Raises:
        ConfigError: If two are asked for at once, or the config file names an unknown one.
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
    changed |= _of_torchrun(settings)
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
    """Whether the environment switches the engine of the config file off, as `ACCELERATE_USE_FSDP=false`."""
    switch = settings.get(SWITCH_OF_ENGINE.get(engine or "", ""))
    return switch is not None and switch.source == "environment" and not switch.value


def _of_torchrun(settings: Mapping[str, Resolved]) -> dict[str, Resolved]:
    """Return the other settings that ``--nproc_per_node`` and ``--rdzv_endpoint`` imply.

    Raises:
        ConfigError: If a flag contradicts them, or the endpoint has no port.
    """
    if settings["standalone"].value and settings["num_machines"].value > 1:
        raise ConfigError("`--standalone` is for one machine. Leave it or `--num_machines` out.")
    # As of a file: its number is that of one machine where `--hosts` names several, and no flag repeats it elsewhere.
    found: dict[str, Resolved] = {}
    per_machine, endpoint = settings["nproc_per_node"].value, settings["rdzv_endpoint"].value
    if per_machine is not None:
        found["num_processes"] = Resolved(per_machine * settings["num_machines"].value, "config file")
    if endpoint is not None:
        address, _, port = endpoint.rpartition(":")
        if not address or not port.isdecimal():
            raise ConfigError(f"`--rdzv_endpoint` is `{endpoint}`, but it must be `ADDRESS:PORT`.")
        found["master_addr"] = Resolved(address, "config file")
        found["master_port"] = Resolved(int(port), "config file")
    for name, other in found.items():
        if settings[name].source == "flag" and settings[name].value != other.value:
            flag = "--nproc_per_node" if name == "num_processes" else "--rdzv_endpoint"
            raise ConfigError(f"`{flag}` and `--{name}` contradict each other. Leave one of them out.")
    return found
