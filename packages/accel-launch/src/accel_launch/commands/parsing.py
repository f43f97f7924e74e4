"""The parser of a subcommand, and those that scripts make to start it on their own."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from accel_launch.commands.protocol import COMMAND_GROUP, Command
from accel_state.environment import snapshot
from accel_state.registry import Registry

if TYPE_CHECKING:
    _Subparsers: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]
else:  # which is not generic when annotations are evaluated
    _Subparsers = argparse._SubParsersAction


def make_parser(
    prog: str, command: Command, subparsers: _Subparsers | None = None
) -> argparse.ArgumentParser:
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


def launch_command_parser(
    subparsers: _Subparsers | None = None,
) -> argparse.ArgumentParser:
    """Return the parser of ``accel launch``, for programs that launch as a part of what they do.

    Args:
        subparsers: Where to add it as the subcommand ``launch``, with `launch_command` as its ``func``.
    """
    return _parser_of("launch", launch_command, subparsers)


def launch_command(args: argparse.Namespace) -> None:
    """Launch what the parser of `launch_command_parser` found, and wait for its end.

    Raises:
        SystemExit: If the run fails, with its exit code.
        AccelError: If it cannot be started.
    """
    _run("launch", args)


def env_command_parser(subparsers: _Subparsers | None = None) -> argparse.ArgumentParser:
    """Return the parser of ``accel env``; see `launch_command_parser`."""
    return _parser_of("env", env_command, subparsers)


def env_command(args: argparse.Namespace) -> dict[str, Any]:
    """Print what ``accel env`` prints, and return it."""
    from accel_launch.commands.env import environment_report

    _run("env", args)
    return environment_report(args.config_file, environ=snapshot())


def tpu_command_parser(subparsers: _Subparsers | None = None) -> argparse.ArgumentParser:
    """Return the parser of ``accel tpu-config``; see `launch_command_parser`."""
    return _parser_of("tpu-config", tpu_command_launcher, subparsers)


def tpu_command_launcher(args: argparse.Namespace) -> None:
    """Run commands on all machines of a TPU pod, as ``accel tpu-config`` does; raises as `launch_command`."""
    _run("tpu-config", args)


def to_fsdp2_command_parser(subparsers: _Subparsers | None = None) -> argparse.ArgumentParser:
    """Return the parser of ``accel to-fsdp2``; see `launch_command_parser`."""
    return _parser_of("to-fsdp2", to_fsdp2_command, subparsers)


def to_fsdp2_command(args: argparse.Namespace) -> None:
    """Convert a config file for FSDP version 1, as ``accel to-fsdp2`` does; raises as `launch_command`."""
    _run("to-fsdp2", args)


def get_config_parser(
    subparsers: _Subparsers | None = None,
) -> argparse.ArgumentParser:
    """Return the parser of ``accel config``, alone or as the subcommand ``config`` of ``subparsers``."""
    command = _command("config")
    parser = make_parser("accel config" if subparsers is None else "config", command, subparsers)
    if subparsers is not None:
        parser.set_defaults(func=command.run)
    return parser


def clean_option(option: str) -> str | None:
    """Return the name that a long option is parsed into, None for anything else."""
    return option[2:].replace("-", "_") if option.startswith("--") else None


class _BothSpellings:
    def add_argument(self, *flags: str, **settings: Any) -> argparse.Action:
        both = (one for flag in flags for one in (flag, flag.replace("_", "-" if flag[:2] == "--" else "_")))
        adding: Any = super()
        return adding.add_argument(*dict.fromkeys(both), **settings)  # type: ignore[no-any-return]


class _Group(_BothSpellings, argparse._ArgumentGroup):
    pass


class CustomArgumentParser(_BothSpellings, argparse.ArgumentParser):
    """A parser of programs that adds each option with underscores with dashes too, and shows both."""

    def add_argument_group(self, *args: Any, **kwargs: Any) -> argparse._ArgumentGroup:
        self._action_groups.append(_Group(self, *args, **kwargs))
        return self._action_groups[-1]


def _parser_of(
    name: str, function: Callable[[argparse.Namespace], Any], subparsers: _Subparsers | None
) -> argparse.ArgumentParser:
    parser = make_parser(f"accel {name}" if subparsers is None else name, _command(name), subparsers)
    if subparsers is not None:
        parser.set_defaults(func=function)
    return parser


def _run(name: str, args: argparse.Namespace) -> None:
    exit_code = _command(name).run(args)
    if exit_code:
        sys.exit(exit_code)


def _command(name: str) -> Command:
    registry: Registry[Command] = Registry("command", COMMAND_GROUP)
    return registry.get(name)


def _accept_both_spellings(parser: argparse.ArgumentParser) -> None:
    """Let ``--num-processes`` stand for ``--num_processes``, and the reverse; the help shows one of them."""
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
    """Keeps the lines of descriptions that fit into the terminal, wraps the others, and leaves long flags room."""

    def __init__(
        self,
        prog: str,
        indent_increment: int = 2,
        max_help_position: int = 30,
        width: int | None = None,
        **named: Any,
    ) -> None:
        super().__init__(prog, indent_increment, max_help_position, width, **named)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(_wrapped(indent + line, width) for line in text.splitlines())

    def add_usage(self, usage: str | None, *arguments: Any, **named: Any) -> None:
        super().add_usage(usage and _wrapped(usage, self._width - len("usage: ")), *arguments, **named)


def _wrapped(line: str, width: int) -> str:
    """Return a line that is too long as several: an example, and what it does, stand below each other."""
    if len(line) <= width:
        return line
    text = line.lstrip()
    margin = line[: len(line) - len(text)]
    example, *meanings = re.split(r" {2,}", text)
    rows = textwrap.wrap(
        example, width, initial_indent=margin, subsequent_indent=margin + "  " * bool(meanings)
    )
    for meaning in meanings:
        deeper = f"{margin}    "
        rows += textwrap.wrap(meaning, width, initial_indent=deeper, subsequent_indent=deeper)
    return "\n".join(rows)
