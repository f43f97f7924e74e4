"""Names that users import from `accel.commands.config.config_args`."""

from accel.commands import config
from accel_state.lazy import attach_stub

load_name, __dir__, __all__ = attach_stub(__name__)


def __getattr__(name: str) -> object:
    return config.default_config_file if name == "default_config_file" else load_name(name)
