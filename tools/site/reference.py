"""Pages of the reference made from code: what each command prints for ``--help``, and the table of settings."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module

from accel_state.environment.settings import SECTIONS, Setting
from tools.workspace import Package

_INTRODUCTION = """\
# Settings

A run reads these environment variables when `Accelerator()` is built, never at import. Flags are those of `accel
launch`, config keys those of the config file (`section.key` inside a section). An argument of `Accelerator` overrides
the variable, a flag overrides the config file. An invalid value is an error that names the variable; an empty
variable counts as unset. `true/false` may be yes/no, on/off, or 1/0.

Settings that only the launcher reads are described by `accel launch --help TOPIC`; `accel config show --all` lists
every setting of a launch with its value.
"""
_SHORTER = {
    "true or false (or yes/no, on/off, 1/0)": "true/false",
    "a whole number of at least ": "integer ≥ ",
    "names separated by commas": "comma-separated names",
    "one of: ": "",
    "any text": "text",
}
"""Words of messages, and those of the table."""
_HEADER = "| Variable | What it does | Accepts | Default | Flag | Config key |\n|-|-|-|-|-|-|\n"


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


def settings_page() -> str:
    """Return the page of settings, from their table."""
    sections = (f"\n## {title}\n\n{_HEADER}{''.join(_rows(each))}" for title, each in SECTIONS.items())
    return _INTRODUCTION + "".join(sections)


def _rows(settings: Sequence[Setting]) -> Iterator[str]:
    for setting in settings:
        accepts = setting.parse.accepts
        for long, short in _SHORTER.items():
            accepts = accepts.replace(long, short)
        default = None if setting.default is None else setting.text_of(setting.default)
        code = [f"`{text}`" if text else "" for text in (default, setting.flag, setting.config_key)]
        cells = (f"`{setting.variable}`", setting.help, accepts, *code)
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"
