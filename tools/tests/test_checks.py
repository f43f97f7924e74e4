import os
import sys
from types import ModuleType

import pytest

from tools.checks import ceilings, run_checks, surface
from tools.workspace import read_packages

SURFACE = """\
from dataclasses import dataclass

__all__ = ["Pair", "fold"]


@dataclass(frozen=True)
class Pair:
    left: int
    right: str = "r"

    @property
    def both(self) -> tuple[int, str]:
        return self.left, self.right

    def _private(self):
        return None


def fold(items, /, start: int | None = None) -> int:
    return 0
"""


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("int | None = None", "int = 0", "-def fold(items, /, start: int | None = None) -> int"),
        ("def both(", "def two(", "-    property both -> tuple[int, str]"),
        ('"fold"]', '"fold", "unfold"]', "accel-ops: a public name cannot be had"),
        ("_private", "_hidden", None),
    ],
)
def test_a_change_of_the_surface_is_found(checkout, monkeypatch, old, new, difference):
    package = read_packages(checkout.root)["accel-ops"]
    for source in (SURFACE, SURFACE.replace(old, new)):
        monkeypatch.setitem(sys.modules, "accel_ops", ModuleType("accel_ops"))
        exec(source, vars(sys.modules["accel_ops"]))
        if source == SURFACE:
            checkout.write("packages/accel-ops/surface.txt", surface.present_surface(package))
            assert surface.differences(package) == []
    found = "\n".join(surface.differences(package))
    assert (difference in found) if difference else not found


def test_one_check_that_fails_fails_them_all(capsys):
    checks = {
        name: (sys.executable, "-c", f"raise SystemExit({code})") for name, code in (("a", 0), ("b", 3))
    }
    assert run_checks(checks, at_once=2, environ=os.environ) == 1
    assert capsys.readouterr().out.endswith("1 of 2 checks failed\n")


def test_more_lines_than_the_ceiling_are_found_and_the_ceiling_only_falls(checkout):
    checkout.write("pyproject.toml", '[tool.accel.ceilings]\n"packages/**/*.py" = 3\n"*.toml" = 5\n')
    (problem,) = ceilings.problems(checkout.root, lower=True)
    assert problem.startswith("packages/**/*.py: ")
    assert checkout.read("pyproject.toml").splitlines()[1:] == ['"packages/**/*.py" = 3', '"*.toml" = 3']
