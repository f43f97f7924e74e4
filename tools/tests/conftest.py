"""Trees to check."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

NAMES = (
    "accel",
    "accel-backends",
    "accel-bigmodel",
    "accel-checkpoint",
    "accel-data",
    "accel-launch",
    "accel-ops",
    "accel-state",
    "accel-trackers",
)
TORCH_FREE = (
    "affinity",
    "enums",
    "environment/environ",
    "environment/__init__",
    "errors",
    "lazy",
    "launched_by/__init__",
    "registry",
    "topology",
    "versions",
)
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
dependencies = [{dependencies}]

[project.optional-dependencies]
yaml = ["pyyaml>=6.0"]
"""


class Checkout:
    """A small checkout with the nine packages, in which every check passes until a test plants something."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
        self.write("README.md", "Tested with torch 2.9 to 2.15, Python 3.11 to 3.13.\n")
        for name in NAMES:
            self._add_package(name)
        for name in TORCH_FREE:
            self.write(f"packages/accel-state/src/accel_state/{name}.py", "")
        self.write("packages/accel-launch/src/accel_launch/rendezvous.py", "")
        for name in ("plugins", "strategies"):
            self.write(f"packages/accel-backends/src/accel_backends/{name}/__init__.py", "")

    def _add_package(self, name: str) -> None:
        folder, import_name = f"packages/{name}", name.replace("-", "_")
        text = PYPROJECT.format(name=name, import_name=import_name, dependencies='"numpy>=1.26"')
        self.write(f"{folder}/pyproject.toml", text)
        self.write(f"{folder}/README.md", f"# {name}\n")
        self.write(f"{folder}/LICENSE", "Apache-2.0\n")
        self.write(
            f"{folder}/CHANGELOG.md", f"# Changelog of {name}\n\n## 0.1.0 (unreleased)\n\n- First version.\n"
        )
        self.write(f"{folder}/src/{import_name}/__init__.py", '__version__ = "0.1.0"\n__all__ = []\n')
        self.write(f"{folder}/src/{import_name}/py.typed", "")
        code = "import numpy\n\n\ndef load():\n    import yaml\n\n    return numpy, yaml\n"
        self.write(f"{folder}/src/{import_name}/reading.py", code)
        self.write(f"{folder}/tests/test_reading.py", "def test_nothing():\n    pass\n")

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
