"""Names that users import from `accel.commands.config.config_args`; see `accel.aliases`."""

from accel.aliases import aliases
from accel.commands import config

find_alias, __dir__, __all__ = aliases(__name__)


def __getattr__(name: str) -> object:
    return config.default_config_file if name == "default_config_file" else find_alias(name)
