"""Names that users import from `accel.commands.launch`; see `accel.aliases`. Also ``accel launch``."""

import sys

from accel.aliases import aliases
from accel_launch.cli import launch as main
from accel_launch.commands.parsing import CustomArgumentParser as CustomArgumentParser
from accel_launch.commands.parsing import HelpFormatter as CustomHelpFormatter  # noqa: F401
from accel_launch.commands.parsing import clean_option as clean_option

if __name__ == "__main__":
    sys.exit(main())

__getattr__, __dir__, __all__ = aliases(
    __name__,
    private={"_validate_launch_command": "accel_launch.commands.launch_kinds:validate_launch_command"},
)
