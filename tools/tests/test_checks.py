"""Each check is green for a tidy checkout and red for what is planted there."""

import os
import subprocess
import sys

import pytest

from tools.checks import ceilings, dependencies, docstrings, structure, surface, text
from tools.checks.cycles import cycle_of
from tools.commands.check import run_checks
from tools.workspace import read_packages

OPS = "packages/accel-ops"
SOURCE = f"{OPS}/src/accel_ops"


def test_a_tidy_checkout_is_fine(checkout):
    checkout.write(f"{SOURCE}/state.pyi", "from accel_ops.reading import load as load\n")
    checkout.write(f"{SOURCE}/state.py", "__getattr__, __dir__, __all__ = attach_stub(__name__)\n")
    checkout.write(f"{SOURCE}/nested/walking.py", "HINT = 'Run `pip install accel-data[yaml]`.'\n")
    for name in ("test_reading_twice", "test_nested", "nested/test_walking_dicts"):
        checkout.write(f"{OPS}/tests/{name}.py", "")
    for check in (structure, dependencies, docstrings):
        assert check.problems(checkout.root) == []
    assert list(dependencies.by_deptry(read_packages(checkout.root)["accel-ops"])) == []


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        (f"{OPS}/README.md", " \n", "README.md: missing or empty"),
        (f"{OPS}/tests/deep/test_reading.py", "", "nothing in src/accel_ops is mirrored by it"),
        (f"{SOURCE}/reading.pyi", "", "reading.pyi hides `load` from type checkers"),
    ],
)
def test_what_is_out_of_place_is_found(checkout, path, content, message):
    checkout.write(path, content)
    (problem,) = structure.problems(checkout.root)
    assert message in problem


@pytest.mark.parametrize(
    ("file", "code", "message"),
    [
        ("adding.py", "X = {'load': 'accel_data.reading:load'}\n", "adding.py: names `accel_data`"),
        ("adding.py", "HINT = 'accel-data[yaml,json]'\n", "adding.py: `accel-data` has no extra `json`"),
        ("adding.pyi", "from accel_data import load as load\n", "adding.pyi: names `accel_data`"),
    ],
)
def test_an_import_that_is_not_declared_is_found(checkout, file, code, message):
    checkout.write(f"{SOURCE}/{file}", code)
    (problem,) = dependencies.problems(checkout.root)
    assert message in problem


def test_a_distribution_that_nothing_names_is_found(checkout):
    checkout.replace(f"{OPS}/pyproject.toml", '"pyyaml>=6.0"', '"pyyaml>=6.0", "timm>=1"')
    (problem,) = dependencies.problems(checkout.root)
    assert "`timm` is declared, nothing imports it" in problem


def test_deptry_reads_imports_in_functions_and_what_is_declared(checkout):
    checkout.write(f"{SOURCE}/adding.py", "def late():\n    from scipy.linalg import svd\n")
    checkout.replace(f"{OPS}/pyproject.toml", '"numpy>=1.26"', '"numpy>=1.26", "requests>=2"')
    found = "".join(dependencies.by_deptry(read_packages(checkout.root)["accel-ops"]))
    assert "adding.py:2:5: DEP003 'scipy' imported but" in found
    assert "DEP002 'requests' defined as a dependency but not used" in found


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def f(x: torch.Tensor): 'On any device.'", "`f` has tensors; name their shape and device"),
        ("class A:\n    def f(self, x: Tensor): ...", "`f` has tensors"),
        ("def f(): raise ConfigError.of('x')", "`f` raises ConfigError; add `Raises:`"),
        ("class A:\n    'A.'\n    def __post_init__(self): raise ConfigError('x')", "raises ConfigError"),
        ("def f(): dist.barrier()", "`f` communicates; name the ranks that must call it"),
        ("from accel_ops.collectives import gather\ndef f(x): 'All of it.'; gather(x)", "`f` communicates"),
        ("def f(x: Tensor): '``(batch, width)``, on any device.'", None),
        ("def _f(x: Tensor): raise ConfigError('x')", None),
        ("class A(Base):\n    def f(self, x: Tensor): ...", None),
        ("def f():\n    def g(): raise ConfigError('x')\n    return g", None),
        ("def f(x):\n    'Rows.'\n    return x.gather(0), functools.reduce(max, x)", None),
    ],
)
def test_a_public_docstring_that_leaves_something_out_is_found(checkout, code, message):
    checkout.write(f"{SOURCE}/rows.py", code + "\n")
    found = docstrings.problems(checkout.root)
    assert len(found) == (message is not None)
    assert all(message in problem for problem in found)


SURFACE = """\
from dataclasses import dataclass

__version__ = "0.1.0"
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
        ('["Pair", "fold"]', '["fold"]', "-class Pair()"),
        ("    right: str", "    right: str | None", "-    right: str"),
        ('"fold"]', '"fold", "unfold"]', "accel-ops: a public name cannot be had"),
        ("_private", "_hidden", None),
    ],
)
def test_a_change_of_the_surface_is_found(checkout, monkeypatch, old, new, difference):
    # A change within the same second that leaves the size as it is would meet bytecode of before.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(checkout.root / OPS / "src"))
    for name in [name for name in sys.modules if name.split(".")[0] == "accel_ops"]:
        monkeypatch.delitem(sys.modules, name)
    checkout.write(f"{SOURCE}/__init__.py", SURFACE)
    package = read_packages(checkout.root)["accel-ops"]
    checkout.write(f"{OPS}/surface.txt", surface.present_surface(package))
    assert surface.differences(package) == []
    checkout.replace(f"{SOURCE}/__init__.py", old, new)
    del sys.modules["accel_ops"]
    found = "\n".join(surface.differences(package))
    del sys.modules["accel_ops"]
    assert (difference in found) if difference else not found


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[there](gone.md)\n", "one.md: `gone.md` leads nowhere"),
        ("![picture](images/gone.png)\n", "one.md: `images/gone.png` leads nowhere"),
        ("[ref]: gone.md\n", "one.md: `gone.md` leads nowhere"),
        ("`test_one.py::test_gone`\n", "one.md: there is no test `test_one.py::test_gone`"),
        ("[me](one.md#here) [web](https://x.test/no.md) `test_one.py::test_it` `values[i](gone.md)`\n", None),
        ("see /home/anna/x\n", "one.md:1:see /home/anna/x"),
        ("/root/.cache/x\n", "one.md:1:/root/.cache/x"),
        ("<<<<<<< HEAD\n", "one.md:1:<<<<<<< HEAD"),
        ("packages/work/x https://example.org/home/anna /home/you/data a ======= b\n", None),
    ],
)
def test_links_to_nothing_and_names_of_one_machine_are_found(tmp_path, content, problem):
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / "test_one.py").write_text("def test_it(): ...\n")
    (tmp_path / "one.md").write_text(content)
    assert text.problems(tmp_path) == ([problem] if problem else [])


def test_a_cycle_is_shown_from_its_first_module():
    assert cycle_of({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert cycle_of({"d": {"c"}, "c": {"b"}, "b": {"d"}}) == ["b", "d", "c", "b"]


def test_one_check_that_fails_fails_them_all(capsys):
    checks = {
        name: (sys.executable, "-c", f"raise SystemExit({code})") for name, code in (("a", 0), ("b", 3))
    }
    assert run_checks(checks, at_once=2, environ=os.environ) == 1
    assert capsys.readouterr().out.endswith("1 of 2 checks failed\n")


def test_more_lines_than_the_ceiling_are_found_and_the_ceiling_only_falls(checkout):
    checkout.write("pyproject.toml", '[tool.accel.ceilings]\n"packages/**/*.py" = 10\n"*.md" = 5\n')
    (problem,) = ceilings.problems(checkout.root, lower=True)
    assert problem.startswith("packages/**/*.py: ")
    assert checkout.read("pyproject.toml").splitlines()[1:] == ['"packages/**/*.py" = 10', '"*.md" = 1']
