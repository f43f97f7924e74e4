"""The ``accel`` command: find the subcommand that was asked for, and load only that one."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from accel_launch import __version__
from accel_launch.messages import complain, flush, has_reader, show
from accel_state.errors import AccelError, UnknownNameError, did_you_mean
from accel_state.registry import Registry, entry_points

if TYPE_CHECKING:
    Subparsers: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]
else:  # which is not generic when annotations are evaluated
    Subparsers = argparse._SubParsersAction

COMMAND_GROUP = "accel.commands"
USAGE_ERROR = 2
FAILURE = 1
INTERRUPTED = 130


class Command(Protocol):
    """A subcommand of ``accel``.

    Its entry point names an object like this, in a module whose docstring starts with `help`. One that adds a
    ``--help`` of its own has an attribute ``has_own_help``, which is true.
    """

    @property
    def help(self) -> str:
        """What it does, in one line."""
        ...

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add its flags; `run` gets what the parser makes of them."""
        ...

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it and return the exit code; an `AccelError` becomes one line on stderr and exit code 1."""
        ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``accel`` with ``argv`` (the process's own arguments by default) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return _without_traceback(lambda: _main(arguments))


def run_command(name: str, arguments: Sequence[str]) -> int:
    """Run one subcommand; what it refuses becomes one line on stderr and an exit code."""
    return _without_traceback(lambda: _run_command(name, arguments))


def command_of(name: str) -> Command:
    """Return a subcommand; raises what `Registry.get` does."""
    registry: Registry[Command] = Registry("command", COMMAND_GROUP)
    return registry.get(name)


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
        "`accel COMMAND --help` shows its flags."
    )


def summary_of(entry_point_value: str) -> str:
    """Return the first docstring line of the module in ``package.module:object``, read from its source.

    Nothing is imported, so listing the commands costs the same however heavy they are. A command without
    source has an empty summary.
    """
    package, *rest = entry_point_value.partition(":")[0].split(".")
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        module = Path(folder, *rest)
        source = next(filter(Path.is_file, (module.with_suffix(".py"), module / "__init__.py")), None)
        if source is not None:
            found = re.match(r'"""(.*?)\.?(?:"""|\n)', source.read_text(encoding="utf-8"))
            return found[1] if found else ""
    return ""


def make_parser(prog: str, command: Command, subparsers: Subparsers | None = None) -> argparse.ArgumentParser:
    """Return the parser of ``command``: that of a program, or of one more subcommand among ``subparsers``."""
    settings: dict[str, Any] = {
        "description": f"{command.help}.",
        "formatter_class": HelpFormatter,
        "allow_abbrev": False,
        "add_help": not getattr(command, "has_own_help", False),
    }
    parser = (
        argparse.ArgumentParser(prog=prog, **settings)
        if subparsers is None
        else subparsers.add_parser(prog, help=command.help, **settings)
    )
    command.add_arguments(parser)
    _accept_both_spellings(parser)
    return parser


def _without_traceback(action: Callable[[], int]) -> int:
    """Return the exit code of ``action``, also if Ctrl-C ends it or the reader of its output is gone."""
    _open_closed_streams()
    try:
        exit_code = action()
        flush()
        return exit_code
    except KeyboardInterrupt:
        complain("Interrupted.")
        return INTERRUPTED
    except BrokenPipeError:
        if has_reader():
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
    try:
        command = command_of(name)
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


def _accept_both_spellings(parser: argparse.ArgumentParser) -> None:
    """Accept ``--num-processes`` for ``--num_processes``, and the reverse; the help shows one of them."""
    for action in parser._actions:
        for flag in action.option_strings:
            name = flag[2:]
            for twin in (f"--{name.replace('_', '-')}", f"--{name.replace('-', '_')}"):
                if flag.startswith("--"):
                    # what `add_argument` would do, but without showing it
                    parser._option_string_actions.setdefault(twin, action)
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _accept_both_spellings(inner)


class HelpFormatter(argparse.HelpFormatter):
    """Wraps the lines of descriptions one by one, and leaves long flags room."""

    def __init__(self, prog: str, *, max_help_position: int = 30, **named: Any) -> None:
        super().__init__(prog, max_help_position=max_help_position, **named)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(
            textwrap.fill(line, width, initial_indent=indent, subsequent_indent=f"{indent}    ")
            for line in text.splitlines()
        )

    def add_usage(self, usage: str | None, *arguments: Any, **named: Any) -> None:
        super().add_usage(usage and textwrap.fill(usage, self._width - len("usage: ")), *arguments, **named)


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
