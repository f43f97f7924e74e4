"""Names that users import from `accel.commands.config`; see `accel.aliases`."""

from accel.aliases import aliases
from accel_launch.cli import config
from accel_launch.commands.config import default_command_parser as default_command_parser
from accel_launch.commands.config import update_command_parser as update_command_parser
from accel_launch.commands.parsing import get_config_parser as config_command_parser  # noqa: F401
from accel_launch.config.file import FILE_NAMES, config_folder
from accel_launch.config.file import default_config_file as existing_config_file
from accel_state.environment import snapshot

main = config
find_alias, __dir__, __all__ = aliases(__name__)


def __getattr__(name: str) -> object:
    if name != "default_config_file":
        return find_alias(name)
    # The path of this user's config file, or where it would be: a string that follows the environment.
    environ = snapshot()
    return str(existing_config_file(environ) or config_folder(environ) / FILE_NAMES[0])
