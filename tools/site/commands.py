"""The reference of the command line: what each command prints for ``--help``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from importlib import import_module

from tools.workspace import Package


def command_pages(packages: Mapping[str, Package]) -> Iterator[tuple[str, str]]:
    """Yield page and Markdown for each command that a package declares, and for their overview."""
    from accel_launch.cli import make_parser

    overview = ["# The command line\n", "| command | what it does |\n|-|-|"]
    declared = (package.project.get("entry-points", {}) for package in packages.values())
    for name, value in sorted(item for each in declared for item in each.get("accel.commands", {}).items()):
        module, _, attribute = value.partition(":")
        command = getattr(import_module(module), attribute)
        overview.append(f"| [`accel {name}`]({name}.md) | {command.help} |")
        yield f"reference/cli/{name}.md", "\n".join(_described(make_parser(f"accel {name}", command)))
    overview.append(
        "\n`accel --help` lists them, `accel COMMAND --help` describes one. None imports torch to show its help."
        " A flag may be spelt with `-` or `_` between its words.\n"
    )
    yield "reference/cli/index.md", "\n".join(overview)


def _described(parser: argparse.ArgumentParser, depth: int = 1) -> Iterator[str]:
    yield f"{'#' * depth} {parser.prog}\n\n```text\n{parser.format_help().rstrip()}\n```\n"
    for action in parser._actions:  # argparse has no public list of them
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _described(inner, depth + 1)
