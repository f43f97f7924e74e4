"""The reference page of settings, from their table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accel_state.environment.settings import SECTIONS, Setting

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


def reference_page() -> str:
    """Return the page as Markdown."""
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
