"""The settings that ``accel launch`` takes: which they are, and how they become flags."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from accel_launch.launcher_settings import installed_settings
from accel_launch.tables import (
    deepspeed,
    fp8,
    hardware,
    hosts,
    kubernetes,
    launcher,
    libraries,
    machines,
    mpi,
    ray,
    sagemaker,
    slurm,
    tpu,
    watching,
)
from accel_state.environment import SETTINGS, Setting
from accel_state.environment.parsers import boolean, count, duration, index, number, port
from accel_state.environment.settings import SECTIONS

_OWN = {setting.name: setting for setting in hardware.SETTINGS}


def _of_table(title: str, *left_out: str) -> tuple[Setting, ...]:
    """Return the settings of a section of accel-state's table that have a flag or a config key."""
    return tuple(
        setting
        for setting in SECTIONS[title]
        if (setting.flag or setting.config_key) and setting.name not in left_out
    )


_GROUPS: Mapping[str, tuple[Setting, ...]] = MappingProxyType(
    {
        launcher.TITLE: launcher.SETTINGS,
        "what to run on": (
            SETTINGS["num_processes"],
            SETTINGS["use_cpu"],
            _OWN["multi_gpu"],
            _OWN["tpu"],
            _OWN["gpu_ids"],
            SETTINGS["num_cpu_threads_per_process"],
            SETTINGS["cpu_affinity"],
            _OWN["ipex"],
            _OWN["use_xpu"],
        ),
        "how to train": (
            SETTINGS["mixed_precision"],
            SETTINGS["gradient_accumulation_steps"],
            SETTINGS["debug_mode"],
            SETTINGS["use_fsdp"],
            SETTINGS["use_deepspeed"],
            SETTINGS["use_megatron_lm"],
            SETTINGS["use_parallelism_config"],
        ),
        "compilation": _of_table("Compilation"),
        machines.TITLE: (SETTINGS["master_addr"], SETTINGS["master_port"], *machines.SETTINGS),
        hosts.TITLE: hosts.SETTINGS,
        libraries.TITLE: libraries.SETTINGS,
        watching.TITLE: watching.SETTINGS,
        "FSDP": _of_table("FSDP", "use_fsdp"),
        "DeepSpeed": _of_table("DeepSpeed", "use_deepspeed"),
        deepspeed.TITLE: deepspeed.SETTINGS,
        "Megatron-LM": _of_table("Megatron-LM", "use_megatron_lm"),
        "parallelism sizes": _of_table("Combined parallelism", "use_parallelism_config"),
        fp8.TITLE: (*_of_table("FP8"), *fp8.SETTINGS),
        mpi.TITLE: mpi.SETTINGS,
        slurm.TITLE: slurm.SETTINGS,
        ray.TITLE: ray.SETTINGS,
        kubernetes.TITLE: kubernetes.SETTINGS,
        tpu.TITLE: (SETTINGS["tpu_name"], *tpu.SETTINGS, SETTINGS["downcast_bf16"]),
        sagemaker.TITLE: sagemaker.SETTINGS,
    }
)
# Which packages are installed does not change while a command runs, so their tables are read here, once.
_OF_OTHER_PACKAGES = installed_settings(setting for group in _GROUPS.values() for setting in group)
# Headings of the help, and the settings below each.
OPTION_GROUPS: Mapping[str, tuple[Setting, ...]] = MappingProxyType(
    {**_GROUPS, **{f"launcher {name}": table for name, table in _OF_OTHER_PACKAGES.items()}}
)
OPTIONS: tuple[Setting, ...] = tuple(setting for group in OPTION_GROUPS.values() for setting in group)
# The settings that only one launcher reads, by its name.
SETTINGS_OF_LAUNCHER: Mapping[str, tuple[Setting, ...]] = MappingProxyType(
    {"ray": ray.SETTINGS, "kubernetes": kubernetes.SETTINGS, **_OF_OTHER_PACKAGES}
)

# Booleans whose flag takes no value; the flags of all others take `true` or `false`.
_SWITCHES = """
    cpu_affinity debug_mode downcast_bf16 drop_in dynamo_use_dynamic dynamo_use_fullgraph
    dynamo_use_regional_compilation fp8_use_autocast_during_eval ipex multi_gpu no_preflight no_tpu_cluster same_network
    slurm slurm_requeue tpu tpu_cluster tpu_use_sudo use_cpu use_deepspeed use_fsdp use_megatron_lm use_mpirun
    use_parallelism_config use_xpu
"""
SWITCHES = frozenset(_SWITCHES.split()) | {
    setting.name
    for table in _OF_OTHER_PACKAGES.values()
    for setting in table
    if setting.parse is boolean and not setting.default
}
# Flags that may be given several times; their texts are joined with commas.
_REPEATED = frozenset({"tpu_vm", "tpu_env"})
_SHORT_FLAGS = {"tee": "-t"}
_OTHER_SPELLINGS = {"fsdp_backward_prefetch": "--fsdp_backward_prefetch"}
_METAVARS_OF = {
    "fsdp_reshard_after_forward": "{true,false}",
    "fsdp_transformer_layer_cls_to_wrap": "NAMES",
    "fp8_override_linear_precision": "BOOL,BOOL,BOOL",
    "gradient_accumulation_steps": "N",
    "gradient_clipping": "NORM",
    "kubernetes_manifest": "FILE",
    "kubernetes_secrets": "NAME=SECRET:KEY",
    "launcher": "NAME",
    "master_addr": "ADDRESS",
    "ray_resources": "NAME=AMOUNT",
    "ray_runtime_env": "FILE",
    "rdzv_conf": "KEY=VALUE",
    "report": "FILE",
    "tpu_env": "NAME=VALUE",
    "tpu_vm": "NAME",
}
_METAVARS = {boolean: "{true,false}", count: "N", index: "N", number: "X", duration: "SECONDS", port: "PORT"}
# Where the table has no default, but a launch does.
_DEFAULTS = {
    "num_processes": "one for each GPU, or 1",
    "num_cpu_threads_per_process": "1 beside a GPU, else the cores, divided among the processes",
    "master_port": "a free one",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the flag of every setting; a flag that is not given leaves None in the namespace."""
    for heading, settings in OPTION_GROUPS.items():
        group = parser.add_argument_group(heading)
        for setting in settings:
            for flag, text in _spellings(setting):
                group.add_argument(*flag, dest=setting.name, default=None, help=text, **_kind(setting))


def given_flags(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the text of each setting that was given as a flag, or that a program wrote into the namespace."""
    found = {setting: getattr(arguments, setting.name, None) for setting in OPTIONS if setting.flag}
    return {
        setting.name: setting.text_of(value)
        for setting, value in found.items()
        if value is not None and not (value is False and setting.name in SWITCHES)
    }


def _spellings(setting: Setting) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each way to write the flag of a setting, with its help; other spellings are not shown there."""
    if setting.flag is not None:
        short = _SHORT_FLAGS.get(setting.name)
        yield ((short, setting.flag) if short else (setting.flag,)), _help(setting)
    if setting.name in _OTHER_SPELLINGS:
        yield (_OTHER_SPELLINGS[setting.name],), argparse.SUPPRESS


def _kind(setting: Setting) -> dict[str, Any]:
    if setting.name in SWITCHES:
        return {"action": "store_const", "const": True}
    action = "append" if setting.name in _REPEATED else "store"
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
    if setting.name in _METAVARS_OF:
        return _METAVARS_OF[setting.name]
    if setting.choices is not None and len(setting.choices) <= 4:
        return "{" + ",".join(setting.choices) + "}"
    return _METAVARS.get(setting.parse, setting.name.rpartition("_")[2].upper())


def _help(setting: Setting) -> str:
    default = _DEFAULTS.get(setting.name, setting.default)
    has_none = default is None or default is False or default == ()
    text = setting.help if has_none else f"{setting.help} Default: {setting.text_of(default)}."
    return text.replace("%", "%%")
