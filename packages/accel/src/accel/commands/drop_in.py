"""Install or remove the drop-in: in a Python environment, `import accelerate` imports accel."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accel_launch.messages import show
from accel_state.errors import ConfigError
from accel_state.versions import require_no_accelerate

# Python executes it at every start, also when accel has been uninstalled since.
LINE = "import importlib.util; importlib.util.find_spec('accel') and __import__('accel.drop_in')\n"

# For the shell a program that starts Python, whose path may have blanks; for Python a string, then the program.
SCRIPT = """\
#!/bin/sh
'''exec' {python} "$0" "$@"
' '''
# Written by `accel drop-in install`; `accel drop-in remove` removes it.
import sys

from accel_launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
"""
MARK = SCRIPT.splitlines()[3]


class DropInCommand:
    """``accel drop-in``; writes two files, or removes them."""

    help = "Install or remove the drop-in: in a Python environment, `import accelerate` imports accel"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what to do."""
        parser.add_argument(
            "action",
            choices=("install", "remove", "status"),
            help="install or remove it, or show whether it is installed",
        )
        parser.add_argument("--json", action="store_true", help="with `status`, print it as JSON")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the action, and print its result."""
        file, script = path_file(), script_file()
        if arguments.action == "install":
            install(file, script)
            show(f"`accelerate` now means accel in this environment, by `{file}`. {state_of(script)}")
        elif arguments.action == "remove":
            has_script = is_ours(script) and remove(script)
            if remove(file) or has_script:
                rest = f" `{script}` is not accel's and stays." if script.exists() else ""
                show(f"Removed `{file}`: `accelerate` no longer means accel.{rest}")
            else:
                show("The drop-in is not installed here; nothing was removed.")
        elif arguments.json:
            found = {"is_installed": file.exists(), "file": str(file), "command": str(script)}
            show(json.dumps({**found, "is_command_ours": is_ours(script)}, indent=2))
        else:
            show(f"Installed, by `{file}`. {state_of(script)}" if file.exists() else "Not installed.")
        return 0


command = DropInCommand()


def path_file() -> Path:
    """Return the file that Python reads at its start, in the environment's folder of packages."""
    return Path(sysconfig.get_path("purelib")) / "accel-drop-in.pth"


def script_file() -> Path:
    """Return the command `accelerate`, in the environment's folder of commands."""
    return Path(sysconfig.get_path("scripts")) / f"accelerate{sysconfig.get_config_var('EXE') or ''}"


def is_ours(script: Path) -> bool:
    """Whether `accel drop-in install` wrote this command."""
    return script.is_file() and MARK.encode() in script.read_bytes()


def state_of(script: Path) -> str:
    """Return a sentence that describes the command `accelerate` here, and the alternative if it is not accel's."""
    instead = "use `accel`, or `python -m accelerate.commands.accelerate_cli`."
    if is_ours(script):
        return f"The command `{script}` starts it."
    if os.path.lexists(script):
        return f"The command `{script}` is not accel's and stays: {instead}"
    reason = ", since only an installer can write an `.exe`" if os.name == "nt" else ""
    return f"There is no command `accelerate`{reason}: {instead}"


def install(file: Path, script: Path) -> None:
    """Write the files. A command of another package is not replaced, and on Windows no command is written.

    Raises:
        StateError: If Accelerate is installed.
        ConfigError: If a folder cannot be written to; then neither file is new.
    """
    require_no_accelerate()
    is_new = os.name != "nt" and not os.path.lexists(script)
    if is_new or is_ours(script):
        write(script, SCRIPT.format(python=shlex.quote(sys.executable)))
        script.chmod(0o755)
    try:
        write(file, LINE)
    except ConfigError:
        if is_new:
            script.unlink()
        raise


def write(file: Path, text: str) -> None:
    """Write a file.

    Raises:
        ConfigError: If that is not possible.
    """
    hint = "Use a virtual environment (`python -m venv`), or `python -m accel.drop_in script.py`, without installing."
    with _explained(file, "written", hint=hint):
        file.write_text(text, encoding="utf-8")


def remove(file: Path) -> bool:
    """Remove the file, and return whether it existed.

    Raises:
        ConfigError: If it cannot be removed.
    """
    if not os.path.lexists(file):
        return False
    with _explained(file, "removed", hint="Check who owns it, and remove it by hand."):
        file.unlink()
    return True


@contextmanager
def _explained(file: Path, what: str, *, hint: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"`{file}` cannot be {what}: {error.strerror}. {hint}") from error
