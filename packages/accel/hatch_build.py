"""Takes the examples of the documentation into the package, from which `accel init` copies them."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ExamplesHook(BuildHookInterface):
    """Adds `docs/examples` of the checkout. A source distribution has them in the package already."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        examples = Path(self.root).parents[1] / "docs" / "examples"
        if version == "editable" or not examples.is_dir():
            return
        inside = "src/accel/examples" if self.target_name == "sdist" else "accel/examples"
        for file in sorted(examples.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                build_data["force_include"][str(file)] = f"{inside}/{file.relative_to(examples).as_posix()}"
