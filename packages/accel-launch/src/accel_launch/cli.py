"""The ``accel`` command: find the subcommand that was asked for, and load only that one."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress

from accel_launch import __version__
from accel_launch.commands.parsing import make_parser
from accel_launch.commands.protocol import COMMAND_GROUP, Command, summary_of
from accel_launch.messages import ReaderGone, complain, flush, show
from accel_state.errors import AccelError, UnknownNameError, did_you_mean
from accel_state.registry import Registry, entry_points

USAGE_ERROR = 2
FAILURE = 1
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``accel`` with ``argv`` (the process's own arguments by default) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return _without_traceback(lambda: _main(arguments))


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Run one subcommand; what it refuses becomes one line on stderr and an exit code."""
    return _without_traceback(lambda: _run_command(name, arguments))


def help_text() -> str:
    """Return what ``accel --help`` prints; the one-line summaries are read without importing the commands."""
    members = sorted({point.name: summary_of(point.value) for point in entry_points(COMMAND_GROUP)}.items())
    width = max((len(name) for name, _ in members), default=0) + 2
    columns = shutil.get_terminal_size().columns
    listed = "\n".join(
        textwrap.fill(
            summary, columns, initial_indent=f"  {name:<{width}}", subsequent_indent=" " * (width + 2)
        )
        or f"  {name}"
        for name, summary in members
    )
    return (
        "usage: accel [-h] [-V] COMMAND ...\n\n"
        "Start one PyTorch script anywhere.\n\n"
        f"commands:\n{listed}\n\n"
        "options:\n  -h, --help     show this help\n  -V, --version  show the version\n\n"
        "`accel COMMAND --help` tells more."
    )


def _without_traceback(action: Callable[[], int]) -> int:
    """Return the exit code of ``action``, also where Ctrl-C ends it, or nobody reads its output any more."""
    _open_closed_streams()
    try:
        exit_code = action()
        flush()
        return exit_code
    except KeyboardInterrupt:
        complain("Interrupted.")
        return INTERRUPTED
    except ReaderGone:
        return FAILURE
    except BrokenPipeError:  # of a command's own `print`, if the next one fails, too
        with suppress(ReaderGone):
            show("")
            flush()
            raise
        return FAILURE


def _open_closed_streams() -> None:
    """Open the null device on each closed standard stream, whose descriptor a pipe to a rank would get otherwise."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:  # argparse writes there, in Python before 3.11.4 without a look
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115


def _main(arguments: Sequence[str]) -> int:
    if arguments in ([], ["-h"], ["--help"]):
        show(help_text())
        return 0
    if arguments[0] in ("-h", "--help"):
        return _run_command(arguments[1], ["--help"])
    if arguments[0] in ("-V", "--version"):
        show(f"accel {__version__}")
        return 0
    return _run_command(arguments[0], arguments[1:])


def _run_command(name: str, arguments: Sequence[str]) -> int:
    registry: Registry[Command] = Registry("command", COMMAND_GROUP)
    try:
        command = registry.get(name)
    except UnknownNameError as error:
        complain(f"{error} See `accel --help`.")
        return USAGE_ERROR
    except AccelError as error:
        return _failure(error)
    try:
        return command.run(_parse(name, command, arguments))
    except AccelError as error:
        return _failure(error)
    except SystemExit as ending:  # how argparse ends after `--help` and after a usage error
        return ending.code if isinstance(ending.code, int) else USAGE_ERROR


def _parse(name: str, command: Command, arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(f"accel {name}", command)
    namespace, unknown = parser.parse_known_args(arguments)
    if unknown:
        flag = unknown[0].partition("=")[0]
        known = _flags_of(parser, namespace)
        parser.error(f"unknown option `{flag}`.{did_you_mean(flag, known)}")
    return namespace


def _flags_of(parser: argparse.ArgumentParser, namespace: argparse.Namespace) -> list[str]:
    """Return the long flags of a parser, and those of the action that was named, as in ``accel config show``."""
    known: list[str] = []
    for action in parser._actions:  # argparse has no public list of them
        known += [name for name in action.option_strings if name.startswith("--")]
        if isinstance(action, argparse._SubParsersAction):
            named = action.choices.get(getattr(namespace, action.dest) or "")
            known += [] if named is None else _flags_of(named, namespace)
    return known


def _failure(error: AccelError) -> int:
    complain(str(error))
    return FAILURE


def _program(name: str) -> Callable[..., int]:
    """Return what the program ``accel-NAME`` does: the same as ``accel NAME``."""

    def run(argv: Sequence[str] | None = None) -> int:
        return run_command(name, list(sys.argv[1:] if argv is None else argv))

    return run


launch, config, env = _program("launch"), _program("config"), _program("env")
check, estimate_memory, tpu_config = _program("test"), _program("estimate-memory"), _program("tpu-config")
to_fsdp2 = _program("to-fsdp2")
