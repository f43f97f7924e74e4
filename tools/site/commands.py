"""The reference of the command line, from the parsers of its commands."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from tools.workspace import Package

if TYPE_CHECKING:
    from accel_launch.commands.protocol import Command

GROUP = "accel.commands"


def installed_commands(packages: Mapping[str, Package]) -> dict[str, Command]:
    """Return the commands that the packages declare as entry points, by name."""
    declared: dict[str, str] = {}
    for package in packages.values():
        declared |= package.project.get("entry-points", {}).get(GROUP, {})
    return {name: _load(value) for name, value in sorted(declared.items())}


def command_pages(packages: Mapping[str, Package]) -> Iterator[tuple[str, str]]:
    """Yield page and Markdown for each command, and for their overview."""
    from accel_launch.commands.parsing import make_parser

    commands = installed_commands(packages)
    overview = ["# The command line\n", "| command | what it does |\n|-|-|"]
    for name, command in commands.items():
        overview.append(f"| [`accel {name}`]({name}.md) | {command.help} |")
        yield f"reference/cli/{name}.md", "\n".join(_described(make_parser(f"accel {name}", command)))
    overview.append(
        "\n`accel --help` lists them, `accel COMMAND --help` describes one. None imports torch to show its help."
        " A flag may be spelt with `-` or `_` between its words."
    )
    yield "reference/cli/index.md", "\n".join(overview) + "\n"


def _load(value: str) -> Command:
    module, _, name = value.partition(":")
    command: Command = getattr(import_module(module), name)
    return command


def _described(parser: argparse.ArgumentParser, depth: int = 1) -> Iterator[str]:
    yield f"{'#' * depth} {parser.prog}\n"
    if parser.description:
        yield f"{parser.description}\n"
    usage = parser.format_usage().removeprefix("usage: ").rstrip()
    if len(usage.splitlines()) > 8:  # of many flags: they are in the tables
        usage = f"{parser.prog} [options]"
    yield f"```text\n{usage}\n```\n"
    if parser.epilog:
        yield f"```text\n{(parser.epilog % {'prog': parser.prog}).rstrip()}\n```\n"
    inner: list[argparse.ArgumentParser] = []
    for group in parser._action_groups:  # argparse has no public list of them
        shown = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        commands = [action for action in shown if isinstance(action, argparse._SubParsersAction)]
        inner += [each for action in commands for each in action.choices.values()]
        rows = [_row(parser, action) for action in shown if action not in commands]
        if rows:
            title = group.title or "options"
            yield f"{'#' * (depth + 1)} {title[0].upper()}{title[1:]}\n"
            yield "| flag | what it does |\n|-|-|"
            yield "\n".join(rows) + "\n"
    for each in inner:
        yield from _described(each, depth + 1)


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = parser._get_formatter()
    metavar = formatter._metavar_formatter(action, formatter._get_default_metavar_for_optional(action))
    if not action.option_strings:
        words = formatter._metavar_formatter(action, action.dest)(1)[0]
    elif action.nargs == 0:
        words = ", ".join(action.option_strings)
    else:
        words = f"{', '.join(action.option_strings)} {formatter._format_args(action, metavar(1)[0])}"
    help_text = formatter._expand_help(action) if action.help else ""
    return f"| {_code(words)} | {_cell(help_text)} |"


def _code(text: str) -> str:
    return f"`{_cell(text)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
