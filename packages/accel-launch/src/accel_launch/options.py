"""The settings that ``accel launch`` takes, also those of other packages: by topic, and how they become flags."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from accel_launch.settings import SETTINGS_OF_TOPIC
from accel_state.environment import SETTINGS, Setting
from accel_state.environment.settings import SECTIONS
from accel_state.errors import ConfigError
from accel_state.registry import Registry

SETTINGS_GROUP = "accel.launcher_settings"


def installed_settings(
    ours: Iterable[Setting], registry: Registry[tuple[Setting, ...]] | None = None
) -> dict[str, tuple[Setting, ...]]:
    """Return the settings of each installed launcher of another package, by the launcher's name.

    Raises:
        ConfigError: If a table holds anything but settings, or a name that another setting has.
        NotAvailableError: If a package cannot be imported.
    """
    tables: Mapping[str, tuple[Setting, ...]] = dict(
        (Registry("table of launcher settings", SETTINGS_GROUP) if registry is None else registry).items()
    )
    taken = {name for setting in ours for name in _names_of(setting)}
    for launcher, settings in tables.items():
        where = f"The settings of the launcher `{launcher}`"
        for setting in settings:
            if not isinstance(setting, Setting):
                raise ConfigError(
                    f"{where} must be `Setting` objects, but one is a {type(setting).__name__}."
                )
            names = _names_of(setting)
            if names & taken:
                both = ", ".join(f"`{name}`" for name in sorted(names & taken))
                raise ConfigError(
                    f"{where} have a name that is taken: {both}. Its package must choose another; without it "
                    "everything works as before."
                )
            taken |= names
    return {launcher: tuple(settings) for launcher, settings in tables.items()}


def _names_of(setting: Setting) -> set[str]:
    names = {setting.name, setting.flag, *setting.other_flags, setting.config_key, setting.variable}
    return {name for name in names if name}


# How many choices the help shows, and how many letters of them in the place of the value: no terminal breaks that.
_MOST_CHOICES, _WIDEST_CHOICES = 4, 20


class Topic(NamedTuple):
    """Settings that the help shows together, under a heading."""

    heading: str
    settings: tuple[Setting, ...]


def _of_table(title: str, *left_out: str) -> tuple[Setting, ...]:
    """Return the settings of a section of accel-state's table that have a flag or a config key."""
    return tuple(
        setting
        for setting in SECTIONS[title]
        if (setting.flag or setting.config_key) and setting.name not in left_out
    )


def _named(names: str) -> tuple[Setting, ...]:
    return tuple(SETTINGS[name] for name in names.split())


_OWN = SETTINGS_OF_TOPIC
_TOPICS: dict[str, Topic] = {
    "launcher": Topic("who starts the processes", _OWN["launcher"]),
    "hardware": Topic(
        "what to run on",
        (
            *_named("num_processes use_cpu"),
            *_OWN["hardware"],
            *_named("share_gpus num_cpu_threads_per_process cpu_affinity"),
        ),
    ),
    "training": Topic(
        "how to train",
        _named(
            "mixed_precision gradient_accumulation_steps debug_mode use_fsdp use_deepspeed use_megatron_lm "
            "use_parallelism_config"
        ),
    ),
    "compilation": Topic("compilation", _of_table("Compilation")),
    "machines": Topic("several machines", (*_named("master_addr master_port"), *_OWN["machines"])),
    "hosts": Topic("several machines over ssh", _OWN["hosts"]),
    "script": Topic("what the script finds", _OWN["script"]),
    "supervision": Topic("how a run is watched and ended", _OWN["supervision"]),
    "fsdp": Topic("FSDP", _of_table("FSDP", "use_fsdp")),
    "deepspeed": Topic("DeepSpeed", (*_of_table("DeepSpeed", "use_deepspeed"), *_OWN["deepspeed"])),
    "megatron": Topic("Megatron-LM", _of_table("Megatron-LM", "use_megatron_lm")),
    "parallelism": Topic("parallelism sizes", _of_table("Combined parallelism", "use_parallelism_config")),
    "fp8": Topic("8-bit training", (*_of_table("FP8"), *_OWN["fp8"])),
    "mpi": Topic("MPI", _OWN["mpi"]),
    "slurm": Topic("SLURM", _OWN["slurm"]),
    "ray": Topic("Ray", _OWN["ray"]),
    "kubernetes": Topic("Kubernetes", _OWN["kubernetes"]),
    "tpu": Topic("TPUs", (*_named("tpu_name"), *_OWN["tpu"], *_named("downcast_bf16"))),
    "sagemaker": Topic("SageMaker", _OWN["sagemaker"]),
}
# Which packages are installed does not change while a command runs, so their tables are read here, once.
SETTINGS_OF_OTHERS = installed_settings(setting for topic in _TOPICS.values() for setting in topic.settings)
TOPICS: Mapping[str, Topic] = MappingProxyType(
    _TOPICS
    | {
        name if name not in _TOPICS else f"launcher-{name}": Topic(f"launcher {name}", table)
        for name, table in SETTINGS_OF_OTHERS.items()
    }
)
"""The settings of a launch by topic, in the order of the help."""
OPTIONS: tuple[Setting, ...] = tuple(setting for topic in TOPICS.values() for setting in topic.settings)


def add_options(
    parser: argparse.ArgumentParser,
    topics: Iterable[Topic] = tuple(TOPICS.values()),
    *,
    has_help: bool = True,
) -> None:
    """Add the flags of ``topics``, all if omitted; one that is not given is None in the namespace, a switch False."""
    for heading, settings in topics:
        group = parser.add_argument_group(heading)
        for setting in settings:
            add_option(group, setting, has_help=has_help)


def add_option(group: argparse._ActionsContainer, setting: Setting, *, has_help: bool = True) -> None:
    """Add the flag of one setting, if it has one; of its other spellings the help shows those of one letter."""
    if setting.flag is None:
        return
    short = [flag for flag in setting.other_flags if not flag.startswith("--")]
    long = [flag for flag in setting.other_flags if flag.startswith("--")]
    shown = _help(setting) if has_help else argparse.SUPPRESS
    for flags, text in (([*short, setting.flag], shown), (long, argparse.SUPPRESS)):
        if flags:
            default = False if setting.is_switch else None
            group.add_argument(*flags, dest=setting.name, default=default, help=text, **_kind(setting))


def given_flags(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the text of each setting that was given as a flag, or that a program wrote into the namespace."""
    given: dict[str, str] = {}
    for setting in OPTIONS:
        value = getattr(arguments, setting.name, None) if setting.flag else None
        if value is not None and not (value is False and setting.is_switch):
            given[setting.name] = setting.text_of(value)
    return given


def _kind(setting: Setting) -> dict[str, Any]:
    if setting.is_switch:
        return {"action": "store_const", "const": True}
    action = "store" if setting.launch.separator is None else "append"
    return {"action": action, "metavar": _metavar(setting), "type": _number_or_text(setting)}


def _number_or_text(setting: Setting) -> Callable[[str], int | float | str]:
    """Return what makes numbers of the texts of a setting that are some; the rest is checked where all settings are."""

    def convert(text: str) -> int | float | str:
        try:
            value = setting.parse(text)
        except (ValueError, KeyError):
            return text
        return value if isinstance(value, int | float) and not isinstance(value, bool) else text

    return convert


def _metavar(setting: Setting) -> str:
    words = setting.parse.choices or ()
    if (
        setting.metavar is None
        and 0 < len(words) <= _MOST_CHOICES
        and sum(map(len, words)) <= _WIDEST_CHOICES
    ):
        return "{" + ",".join(words) + "}"
    return setting.metavar or setting.parse.metavar or setting.name.rpartition("_")[2].upper()


def _help(setting: Setting) -> str:
    default = setting.default if setting.launch.default_text is None else setting.launch.default_text
    has_none = default is None or default is False or default == ()
    text = setting.help
    if not has_none:
        text += f" Default: {default if isinstance(default, str) else setting.text_of(default)}."
    words = setting.parse.choices or ()
    if len(words) <= _MOST_CHOICES and sum(map(len, words)) > _WIDEST_CHOICES:
        text = f"{text} One of {', '.join(words)}."
    return text.replace("%", "%%")
