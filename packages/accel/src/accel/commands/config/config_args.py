"""Names that users import from `accel.commands.config.config_args`; see `accel.aliases`."""

from accel.aliases import aliases

__getattr__, __dir__, __all__ = aliases(__name__)
