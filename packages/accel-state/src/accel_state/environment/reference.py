"""The reference page of settings, written from the table: ``python -m accel_state.environment.reference``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from accel_state.environment.settings import SECTIONS, Setting

PAGE = Path("docs") / "reference" / "settings.md"
_INTRODUCTION = """\
# Settings

The settings of a run, which its processes read from environment variables when `Accelerator()` is built, never
at import. Where a flag stands, `accel launch` takes it too; where a config key stands, the config file has it
(`section.key` inside a section). An argument of `Accelerator` wins over the variable, a flag over the config file.
A value that is not accepted is an error that names the variable; an empty variable counts as unset.

Settings that only the launcher reads (launcher, machines, hosts, SLURM, Ray, Kubernetes, TPU pods, SageMaker,
supervision) are not listed here: `accel launch --help TOPIC` describes them, and `accel config show --all` lists
every setting of a launch with its value.

This page is made from the table of settings: `python -m accel_state.environment.reference`.
"""
_HEADER = "| Variable | What it does | Accepts | Default | Flag | Config key |\n|-|-|-|-|-|-|\n"


def reference_page() -> str:
    """Return the whole page as Markdown."""
    sections = (
        f"\n## {title}\n\n{_HEADER}{''.join(_rows(settings))}" for title, settings in SECTIONS.items()
    )
    return _INTRODUCTION + "".join(sections)


def main(arguments: Sequence[str]) -> None:
    """Write the page to the path in ``arguments``, or to its place under the working directory."""
    path = Path(arguments[0]) if arguments else PAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(reference_page(), encoding="utf-8")


def _rows(settings: Sequence[Setting]) -> Iterator[str]:
    for setting in settings:
        default = "" if setting.default is None else setting.text_of(setting.default)
        cells = (
            f"`{setting.variable}`",
            setting.help,
            setting.parse.accepts,
            _code(default),
            _code(setting.flag),
            _code(setting.config_key),
        )
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"


def _code(text: str | None) -> str:
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    main(sys.argv[1:])
