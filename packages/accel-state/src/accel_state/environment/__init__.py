"""The environment: settings by name, other variables, and temporary changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_state.lazy import attach

if TYPE_CHECKING:
    from accel_state.environment.door import export as export
    from accel_state.environment.door import is_set as is_set
    from accel_state.environment.door import read as read
    from accel_state.environment.door import restore as restore
    from accel_state.environment.door import snapshot as snapshot
    from accel_state.environment.door import variable as variable
    from accel_state.environment.door import write as write
    from accel_state.environment.patching import clear_environment as clear_environment
    from accel_state.environment.patching import patch_environment as patch_environment
    from accel_state.environment.patching import purge_accelerate_environment as purge_accelerate_environment
    from accel_state.environment.settings import SETTINGS as SETTINGS
    from accel_state.environment.settings import Setting as Setting
    from accel_state.environment.settings import find_setting as find_setting
    from accel_state.environment.variables import (
        convert_dict_to_env_variables as convert_dict_to_env_variables,
    )
    from accel_state.environment.variables import env_var_path_add as env_var_path_add
    from accel_state.environment.variables import get_int_from_env as get_int_from_env
    from accel_state.environment.variables import parse_choice_from_env as parse_choice_from_env
    from accel_state.environment.variables import parse_flag_from_env as parse_flag_from_env
    from accel_state.environment.variables import str_to_bool as str_to_bool

_HOMES = {
    "door": ("export", "is_set", "read", "restore", "snapshot", "variable", "write"),
    "patching": ("clear_environment", "patch_environment", "purge_accelerate_environment"),
    "settings": ("SETTINGS", "Setting", "find_setting"),
    "variables": (
        "convert_dict_to_env_variables",
        "env_var_path_add",
        "get_int_from_env",
        "parse_choice_from_env",
        "parse_flag_from_env",
        "str_to_bool",
    ),
}
__getattr__, __dir__, __all__ = attach(
    __name__, {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}
)
