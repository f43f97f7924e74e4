"""The reference page of settings, from their table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accel_state.environment.settings import SECTIONS, Setting

_INTRODUCTION = """\
# Settings

The settings of a run, which its processes read from environment variables when `Accelerator()` is built, never
at import. A setting with a flag is an option of `accel launch`, one with a config key is read from the config file
(`section.key` inside a section). An argument of `Accelerator` overrides the variable, a flag overrides the config file.
An invalid value is an error that names the variable; an empty variable counts as unset.

Settings that only the launcher reads (launcher, machines, hosts, SLURM, Ray, Kubernetes, TPU pods, SageMaker,
supervision) are not listed here: `accel launch --help TOPIC` describes them, and `accel config show --all` lists
every setting of a launch with its value.
"""
_HEADER = "| Variable | What it does | Accepts | Default | Flag | Config key |\n|-|-|-|-|-|-|\n"


def reference_page() -> str:
    """Return the page as Markdown."""
    sections = (
        f"\n## {title}\n\n{_HEADER}{''.join(_rows(settings))}" for title, settings in SECTIONS.items()
    )
    return _INTRODUCTION + "".join(sections)


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
