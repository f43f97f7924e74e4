"""A small checkout to check."""

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
requires-python = ">=3.11"
classifiers = ["Programming Language :: Python :: 3.13", "Programming Language :: Python :: 3.11"]
dependencies = ["numpy>=1.26"]

[project.optional-dependencies]
yaml = ["pyyaml>=6.0"]
"""
PACKAGE = {
    "README.md": "# A package\n",
    "LICENSE": "Apache-2.0\n",
    "CHANGELOG.md": "# Changelog\n\n## 0.1.0 (2030-01-01)\n\n- First version.\n",
    "src/{import_name}/__init__.py": '__version__ = "0.1.0"\n__all__ = []\n',
    "src/{import_name}/py.typed": "",
    "src/{import_name}/reading.py": "import numpy\n\n\ndef load():\n    import yaml\n\n    return numpy, yaml\n",
    "src/{import_name}/errors.py": "class ConfigError(ValueError): ...\n",
    "tests/test_reading.py": "def test_nothing():\n    pass\n",
}


class Checkout:
    """A small checkout, in which every check passes until a test plants something."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("README.md", "Tested with torch 2.9 to 2.15, Python 3.11 to 3.13.\n")
        self.write("pyproject.toml", '[dependency-groups]\nbench = ["rich"]\n\n[tool.hatch]\nenvs = {}\n')
        for name in ("accel", "accel-data", "accel-ops", "accel-state"):
            names = {"name": name, "import_name": name.replace("-", "_")}
            self.write(f"packages/{name}/pyproject.toml", PYPROJECT.format(**names))
            for path, text in PACKAGE.items():
                self.write(f"packages/{name}/{path.format(**names)}", text)

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
