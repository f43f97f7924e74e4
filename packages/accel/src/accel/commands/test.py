"""Check this set-up: processes, collectives, loaders and training."""

from __future__ import annotations

import argparse
import sys

from accel_launch.cli import check as main
from accel_launch.commands.launch import add_common_flags
from accel_launch.commands.launch import command as launch_command
from accel_launch.options import add_options

CHECK_MODULE = "accel.commands.setup_check"


class TestCommand:
    """``accel test``; launches `accel.commands.setup_check`."""

    help = "Check this set-up: processes, collectives, loaders and training"
    has_own_help = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = "accel test [options]"
        add_common_flags(parser)
        add_options(parser)
        # The other arguments of `accel launch`, whose code runs this.
        parser.set_defaults(
            refuse=parser.error,
            json=False,
            module=True,
            no_python=False,
            quiet=False,
            training_script=CHECK_MODULE,
            training_script_args=[],
        )

    def run(self, arguments: argparse.Namespace) -> int:
        return launch_command.run(arguments)


command = TestCommand()

if __name__ == "__main__":
    sys.exit(main())
