import sys

import pytest

from tools.checks.surface import differences
from tools.workspace import read_packages

OPS = "packages/accel-ops/src/accel_ops"
CODE = """\
from dataclasses import dataclass

__version__ = "0.1.0"
__all__ = ["Pair", "fold"]


@dataclass(frozen=True)
class Pair:
    left: int
    right: str = "r"

    def swap(self, *, twice: bool = False) -> "Pair":
        return self

    @property
    def both(self) -> tuple[int, str]:
        return self.left, self.right

    def _private(self):
        return None


def fold(items, /, start: int | None = None) -> int:
    return 0
"""


@pytest.fixture
def package(checkout, monkeypatch):
    """The planted accel_ops, imported instead of the real one while the test runs."""
    checkout.write(f"{OPS}/__init__.py", CODE)
    # A change within the same second that leaves the size as it is would meet bytecode of before.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(checkout.root / "packages/accel-ops/src"))
    monkeypatch.delitem(sys.modules, "accel_ops", raising=False)
    real = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "accel_ops"}
    for name in real:
        monkeypatch.delitem(sys.modules, name)
    yield read_packages(checkout.root)["accel-ops"]
    sys.modules.pop("accel_ops", None)


def test_the_snapshot_holds_names_signatures_and_members(package):
    text = "\n".join(differences(package))
    for line in (
        "+class Pair()",
        "+    def __init__(self, left: int, right: str = 'r') -> None",
        "+    left: int",
        "+    property both -> tuple[int, str]",
        "+    def swap(self, *, twice: bool = False) -> Pair",
        "+def fold(items, /, start: int | None = None) -> int",
    ):
        assert line in text
    assert "_private" not in text


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "start: int | None = None",
            "start: int = 0",
            "-def fold(items, /, start: int | None = None) -> int",
        ),
        ("def swap(", "def turn(", "-    def swap(self, *, twice: bool = False) -> Pair"),
        ('["Pair", "fold"]', '["fold"]', "-class Pair()"),
        ("    right: str", "    right: str | None", "-    right: str"),
    ],
)
def test_a_change_of_the_surface_is_told(package, checkout, old, new, told):
    snapshot = package.folder / "surface.txt"
    snapshot.write_text("".join(f"{line[1:]}\n" for line in differences(package)[3:]))
    assert differences(package) == []
    checkout.replace(f"{OPS}/__init__.py", old, new)
    sys.modules.pop("accel_ops")
    changed = read_packages(checkout.root)["accel-ops"]
    assert told in differences(changed)


def test_a_public_name_that_is_not_there_is_told(package, checkout):
    checkout.replace(f"{OPS}/__init__.py", '["Pair", "fold"]', '["Pair", "fold", "unfold"]')
    (problem,) = differences(package)
    assert problem.startswith("accel-ops: a public name cannot be had")
    assert "unfold" in problem
