"""All settings, by name and by variable, and their order on the reference page."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from accel_state.environment.setting import Setting
from accel_state.environment.tables import deepspeed, dynamo, fp8, fsdp, megatron, parallelism, processes, run
from accel_state.errors import UnknownNameError

__all__ = ["SECTIONS", "SETTINGS", "Setting", "find_setting", "setting_of_variable"]

SECTIONS: Mapping[str, tuple[Setting, ...]] = MappingProxyType(
    {
        table.TITLE: table.SETTINGS
        for table in (run, processes, fsdp, deepspeed, parallelism, dynamo, fp8, megatron)
    }
)
SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {setting.name: setting for section in SECTIONS.values() for setting in section}
)
_BY_VARIABLE = {setting.variable: setting for setting in SETTINGS.values()}


def find_setting(name: str) -> Setting:
    """Return the setting called ``name``; an unknown name is an `UnknownNameError`."""
    if name not in SETTINGS:
        raise UnknownNameError.of("setting", name, SETTINGS)
    return SETTINGS[name]


def setting_of_variable(variable: str) -> Setting | None:
    """Return the setting that ``variable`` carries, None for a variable that is none of ours."""
    return _BY_VARIABLE.get(variable)
