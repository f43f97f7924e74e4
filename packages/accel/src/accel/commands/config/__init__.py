"""Names that users import from `accel.commands.config`."""

from accel_launch.config.file import FILE_NAMES, config_folder
from accel_launch.config.file import default_config_file as existing_config_file
from accel_state.environment import snapshot
from accel_state.lazy import attach_stub

load_name, __dir__, __all__ = attach_stub(__name__)


def __getattr__(name: str) -> object:
    if name != "default_config_file":
        return load_name(name)
    # The path of this user's config file, or where it would be: a string that follows the environment.
    environ = snapshot()
    return str(existing_config_file(environ) or config_folder(environ) / FILE_NAMES[0])
