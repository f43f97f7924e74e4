"""Read the command line of ``tools/dev.py`` and run one command."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module

from tools.setup.running import SetupError

COMMANDS = ("demo", "test", "check", "docs", "isolated", "wheels", "release", "bench", "gpu")
EPILOG = """\
Start with `python tools/dev.py demo`: it trains an image classifier on the devices here. Then `… test`.
The first command makes .venv and installs everything (about a minute); later ones start at once.
All generated files are in .venv, .venvs, build, dist, runs and site; `git clean -fdX` removes them.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with one sub-command per file in ``tools/commands``, whose first line is its help."""
    parser = argparse.ArgumentParser(
        prog="python tools/dev.py",
        description="Set up this checkout and work on it. Needs Python 3.11 or newer and nothing else.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        command = import_module(f"tools.commands.{name}")
        about = str(command.__doc__).partition("\n")[0]
        subparser = subparsers.add_parser(name, help=about, description=about)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.main)
    return parser


def split_at_dashes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split ``words`` at the first ``--``: our arguments, and the arguments to pass on."""
    if "--" not in words:
        return list(words), []
    at = list(words).index("--")
    return list(words[:at]), list(words[at + 1 :])


def main(words: Sequence[str]) -> int:
    """Run the command that ``words`` name; return the exit code."""
    ours, handed_on = split_at_dashes(words)
    arguments = build_parser().parse_args(ours)
    arguments.handed_on = handed_on
    try:
        code: int = arguments.run(arguments)
    except (SetupError, subprocess.CalledProcessError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code
