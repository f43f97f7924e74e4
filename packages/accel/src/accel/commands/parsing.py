"""The parsers of subcommands, for programs that have them as a part of what they do."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from accel_launch.cli import Subparsers, command_of, make_parser
from accel_state.environment import snapshot


def launch_command_parser(
    subparsers: Subparsers | None = None,
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


def env_command_parser(subparsers: Subparsers | None = None) -> argparse.ArgumentParser:
    """Return the parser of ``accel env``; see `launch_command_parser`."""
    return _parser_of("env", env_command, subparsers)


def env_command(args: argparse.Namespace) -> dict[str, Any]:
    """Print what ``accel env`` prints, and return it."""
    from accel_launch.commands.env import environment_report

    _run("env", args)
    return environment_report(args.config_file, environ=snapshot())


def tpu_command_parser(subparsers: Subparsers | None = None) -> argparse.ArgumentParser:
    """Return the parser of ``accel tpu-config``; see `launch_command_parser`."""
    return _parser_of("tpu-config", tpu_command_launcher, subparsers)


def tpu_command_launcher(args: argparse.Namespace) -> None:
    """Run commands on all machines of a TPU pod, as ``accel tpu-config`` does; raises as `launch_command`."""
    _run("tpu-config", args)


def to_fsdp2_command_parser(subparsers: Subparsers | None = None) -> argparse.ArgumentParser:
    """Return the parser of ``accel to-fsdp2``; see `launch_command_parser`."""
    return _parser_of("to-fsdp2", to_fsdp2_command, subparsers)


def to_fsdp2_command(args: argparse.Namespace) -> None:
    """Convert a config file for FSDP version 1, as ``accel to-fsdp2`` does; raises as `launch_command`."""
    _run("to-fsdp2", args)


def get_config_parser(
    subparsers: Subparsers | None = None,
) -> argparse.ArgumentParser:
    """Return the parser of ``accel config``, alone or as the subcommand ``config`` of ``subparsers``."""
    command = command_of("config")
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
    name: str, function: Callable[[argparse.Namespace], Any], subparsers: Subparsers | None
) -> argparse.ArgumentParser:
    parser = make_parser(f"accel {name}" if subparsers is None else name, command_of(name), subparsers)
    if subparsers is not None:
        parser.set_defaults(func=function)
    return parser


def _run(name: str, args: argparse.Namespace) -> None:
    exit_code = command_of(name).run(args)
    if exit_code:
        sys.exit(exit_code)
