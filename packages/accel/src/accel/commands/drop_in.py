"""Let `accelerate` mean accel in a whole Python environment, and take that back."""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

from accel_launch.messages import show
from accel_state.errors import ConfigError
from accel_state.peer_package import refuse_accelerate

# Python executes it at every start, also when accel has been uninstalled since.
LINE = "import importlib.util; importlib.util.find_spec('accel') and __import__('accel.drop_in')\n"


class DropInCommand:
    """``accel drop-in``; writes one file, or removes it."""

    help = "Let `accelerate` mean accel in a whole Python environment, and take that back"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what to do."""
        parser.add_argument(
            "action",
            choices=("install", "remove", "status"),
            help="install: from now on; remove: no longer; status: tell whether it is installed",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it, and say what was done."""
        file = path_file()
        if arguments.action == "install":
            install(file)
            show(f"`accelerate` now means accel in this environment, by `{file}`.")
        elif arguments.action == "remove":
            show(
                f"Removed `{file}`: `accelerate` no longer means accel."
                if remove(file)
                else "The drop-in is not installed here; nothing was removed."
            )
        else:
            show(f"Installed, by `{file}`." if file.exists() else "Not installed.")
        return 0


command = DropInCommand()


def path_file() -> Path:
    """Return the file that Python reads at its start, in the environment's folder of packages."""
    return Path(sysconfig.get_path("purelib")) / "accel-drop-in.pth"


def install(file: Path) -> None:
    """Write the file.

    Raises:
        StateError: If Accelerate itself is installed.
        ConfigError: If the folder cannot be written to.
    """
    refuse_accelerate()
    try:
        file.write_text(LINE, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"`{file}` cannot be written: {error.strerror}. Use an environment of your own (`python -m venv`), or "
            "`python -m accel.drop_in script.py`, which installs nothing."
        ) from error


def remove(file: Path) -> bool:
    """Remove the file, and return whether it was there.

    Raises:
        ConfigError: If it cannot be removed.
    """
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigError(
            f"`{file}` cannot be removed: {error.strerror}. Check who owns it, and remove it by hand."
        ) from error
    return True
