"""A small checkout to work on."""

from pathlib import Path

import pytest

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.version]
path = "src/{import_name}/__init__.py"

[project]
name = "{name}"
dynamic = ["version"]
dependencies = ["numpy>=1.26"]
"""


class Checkout:
    """A small checkout of four packages."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("pyproject.toml", '[dependency-groups]\nbench = ["rich"]\n\n[tool.hatch]\nenvs = {}\n')
        for name in ("accel", "accel-data", "accel-ops", "accel-state"):
            import_name = name.replace("-", "_")
            self.write(
                f"packages/{name}/pyproject.toml", PYPROJECT.format(name=name, import_name=import_name)
            )
            self.write(
                f"packages/{name}/CHANGELOG.md", "# Changelog\n\n## 0.1.0 (2030-01-01)\n\n- First version.\n"
            )
            self.write(f"packages/{name}/src/{import_name}/__init__.py", '__version__ = "0.1.0"\n')

    def write(self, path: str, text: str) -> Path:
        """Write a file of the checkout."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def read(self, path: str) -> str:
        """Return the text of a file of the checkout."""
        return (self.root / path).read_text(encoding="utf-8")

    def replace(self, path: str, old: str, new: str) -> None:
        """Replace text that must be there."""
        text = self.read(path)
        assert old in text
        self.write(path, text.replace(old, new))


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A fresh small checkout."""
    return Checkout(tmp_path)
