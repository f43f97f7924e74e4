"""Config files to start from: one YAML file for each way to train, whose first line says which."""

from __future__ import annotations

from pathlib import Path

from accel_state.errors import ConfigError, did_you_mean

FOLDER = Path(__file__).parent


def template_names() -> list[str]:
    """Return the names of all templates, sorted."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def read_template(name: str) -> str:
    """Return the text of a template.

    Raises:
        ConfigError: If there is no template of that name.
    """
    if name not in (names := template_names()):
        raise ConfigError(
            f"`--template` is `{name}`, but the templates are {', '.join(names)}.{did_you_mean(name, names)}"
        )
    return (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def template_table() -> str:
    """Return a line for each template: its name and what it is for."""
    purposes = {name: read_template(name).splitlines()[0].removeprefix("# ") for name in template_names()}
    width = max(map(len, purposes))
    return "\n".join(f"{name:{width}}  {purpose}" for name, purpose in purposes.items())
