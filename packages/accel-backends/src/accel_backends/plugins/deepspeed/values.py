"""What users may write for a field of the DeepSpeed plugin, and who said it."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import Any

from accel_backends.plugins.deepspeed.config_tree import AUTO, value_of
from accel_backends.plugins.deepspeed.facts import Facts, Said
from accel_backends.plugins.deepspeed.filling import CONFIG
from accel_backends.plugins.deepspeed.hf_config import HfDeepSpeedConfig
from accel_state.environment import environ, find_setting
from accel_state.errors import ConfigError

# Where each field stands in the config.
KEYS: Mapping[str, str] = MappingProxyType(
    {
        "gradient_accumulation_steps": "gradient_accumulation_steps",
        "gradient_clipping": "gradient_clipping",
        "zero_stage": "zero_optimization.stage",
        "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
        "offload_optimizer_nvme_path": "zero_optimization.offload_optimizer.nvme_path",
        "offload_param_device": "zero_optimization.offload_param.device",
        "offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
        "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    }
)
# What a field is where the config leaves its key out.
UNSAID: Mapping[str, Any] = MappingProxyType(
    {
        "gradient_accumulation_steps": AUTO,
        "gradient_clipping": AUTO,
        "zero_stage": 0,
        "offload_optimizer_device": "none",
        "offload_optimizer_nvme_path": None,
        "offload_param_device": "none",
        "offload_param_nvme_path": None,
        "zero3_save_16bit_model": False,
    }
)
# The config that is made where none is given.
TEMPLATE: Mapping[str, Any] = MappingProxyType(
    {
        "train_batch_size": AUTO,
        "train_micro_batch_size_per_gpu": AUTO,
        "gradient_accumulation_steps": AUTO,
        "gradient_clipping": AUTO,
        "zero_optimization": {
            "stage": AUTO,
            "offload_optimizer": {"device": AUTO},
            "offload_param": {"device": AUTO},
            "stage3_gather_16bit_weights_on_model_save": AUTO,
        },
    }
)
# Keys of the launcher's config file that a DeepSpeed config says alone.
_SAID_BY_CONFIG = frozenset({*KEYS, "mixed_precision"})


def setting_of(field: str) -> str:
    """Return the name of the setting that a field is read from where it is left out."""
    return field if field in ("gradient_accumulation_steps", "gradient_clipping") else f"deepspeed_{field}"


def parsed(setting: str, field: str, value: object) -> Any:
    """Return a value as its setting would have it, from text, a number or a bool.

    Raises:
        ConfigError: If the setting does not accept it.
    """
    return find_setting(setting).value_of(str(value), source=field)


def config_of(given: Any) -> Any:
    """Return the config object of the argument, or of the variable where it is left out; None where none is named."""
    if given is None:
        given = environ.read("deepspeed_config_file")
    if given is None:
        return None
    return given if isinstance(getattr(given, "config", None), dict) else HfDeepSpeedConfig(given)


def source_of(given: Any) -> str:
    """Return what messages call the config."""
    path = environ.read("deepspeed_config_file") if given is None else given
    is_path = isinstance(path, str | os.PathLike) and os.path.isfile(path)  # noqa: PTH113 -- may be base64
    return f"`{os.fspath(path)}`" if is_path else CONFIG


def facts_of(plugin: Any, *, has_config: bool) -> Facts:
    """Return what the arguments of a plugin say, and the variables where they are left out.

    Raises:
        ConfigError: If a value is wrong.
    """
    said: dict[str, Any] = {name: _said(name, getattr(plugin, name)) for name in KEYS}
    fields = (
        [name for name in environ.read("config_ds_fields") if name in _SAID_BY_CONFIG] if has_config else ()
    )
    return Facts(
        **said,
        is_train_batch_min=plugin.is_train_batch_min,
        launcher_fields=tuple(fields),
    )


def _said(field: str, given: object) -> Said | None:
    setting = find_setting(setting_of(field))
    if given == AUTO:
        return None
    if given is not None:
        value = parsed(setting.name, field, given)
        return None if value is None else Said(value, f"`DeepSpeedPlugin({field}={given!r})`")
    if environ.is_set(setting.name):
        value = environ.read(setting.name)
        if (
            field == "gradient_accumulation_steps" and value == 1
        ):  # what questionnaires write where nobody chose
            value = None
        return None if value is None else Said(value, f"`{setting.flag}` (`{setting.variable}`)")
    return default_of(field)


def default_of(field: str) -> Said | None:
    """Return what a field is where nobody says it, None where that is left open."""
    value = find_setting(setting_of(field)).default
    return None if value is None else Said(value, "default", is_default=True)


def check_sections(config: Mapping[str, Any], facts: Facts, source: str) -> None:
    """Refuse a config without ZeRO's section, which would train without sharding.

    Raises:
        ConfigError: If nobody else names a stage either.
    """
    is_named = facts.zero_stage is not None and not facts.zero_stage.is_default
    if "zero_optimization" not in config and not is_named:
        raise ConfigError(
            f'{source[0].upper()}{source[1:]} has no `zero_optimization`. Add `"zero_optimization": {{"stage": 2}}`, '
            "or the stage that you want; 0 shards nothing."
        )


def check_stage(stage: Any, facts: Facts, config: Mapping[str, Any]) -> None:
    """Refuse offloading that ZeRO's stage does not do.

    Raises:
        ConfigError: If it would have no effect.
    """
    for name in ("optimizer", "param"):
        device = value_of(config, f"zero_optimization.offload_{name}.device", "none")
        least = 1 if (name, device) == ("optimizer", "cpu") else 3
        if device in ("cpu", "nvme") and isinstance(stage, int) and stage < least:
            raise ConfigError(
                f"`offload_{name}_device` is `{device}`, which has no effect with ZeRO stage {stage}: it needs stage "
                f"{least} or higher. Set `zero_stage`, or leave the device out."
            )
        path = value_of(config, f"zero_optimization.offload_{name}.nvme_path")
        if device == "nvme" and path in (None, "none", AUTO):
            raise ConfigError(
                f"`offload_{name}_device` is `nvme`, but `offload_{name}_nvme_path` names no folder. Name one."
            )


def fill_or_compare(
    section: MutableMapping[str, Any],
    name: str,
    key: str,
    given: Mapping[str, Any],
    mismatches: list[str] | None,
) -> None:
    """Fill an ``auto`` of a section with the value given for its whole key, or note where the two differ.

    Raises:
        ConfigError: If the value is ``auto`` and none is given.
    """
    current = section.get(name)
    if current == AUTO:
        if key not in given:
            raise ConfigError(
                f"`{key}` is `auto`, and no value was given for it. Write it in the DeepSpeed config, or pass it."
            )
        section[name] = given[key]
    elif mismatches is not None and current is not None and key in given and current != given[key]:
        mismatches.append(f"`{key}` is {current}, but {given[key]} was given.")


def names_of(given: str | Sequence[str]) -> list[str]:
    """Return the names in a text with commas, or in a list."""
    parts = given.split(",") if isinstance(given, str) else given
    return [name.strip() for name in parts if name.strip()]
