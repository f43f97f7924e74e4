"""What is wrong in a package is found, and nothing else."""

import pytest

from tools.checks import dependencies, structure
from tools.checks.cycles import cycle_of
from tools.workspace import read_packages

OPS = "packages/accel-ops"
SOURCE = f"{OPS}/src/accel_ops"
PROJECT = f"{OPS}/pyproject.toml"


def test_a_tidy_checkout_is_fine(checkout):
    checkout.write(f"{SOURCE}/state.pyi", "from accel_ops.reading import load as load\n")
    checkout.write(f"{SOURCE}/state.py", "__getattr__, __dir__, __all__ = attach_stub(__name__)\n")
    checkout.write(f"{SOURCE}/nested/walking.py", "HINT = 'Run `pip install accel-data[yaml]`.'\n")
    for name in ("test_reading_twice", "test_nested", "nested/test_walking_dicts"):
        checkout.write(f"{OPS}/tests/{name}.py", "")
    assert structure.problems(checkout.root) == dependencies.problems(checkout.root) == []
    assert list(dependencies.by_deptry(read_packages(checkout.root)["accel-ops"])) == []


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        (f"{OPS}/README.md", " \n", "README.md: missing or empty"),
        (f"{SOURCE}/version.py", '__version__ = "0.1.0"\n', "a second `__version__`"),
        (f"{SOURCE}/__init__.py", '__version__ = "0.2.0"\n', "no section `## 0.2.0`"),
        (f"{SOURCE}/utils.py", "", "its name does not say what is in it"),
        (f"{SOURCE}/helpers/seeds.py", "", "its name does not say what is in it"),
        (f"{OPS}/src/stranger/__init__.py", "", "stranger: does not belong here"),
        (f"{OPS}/tests/test_nothing_real.py", "", "nothing in src/accel_ops is mirrored by it"),
        (f"{OPS}/tests/deep/test_reading.py", "", "nothing in src/accel_ops is mirrored by it"),
        (f"{OPS}/tests/__init__.py", "", "test folders have no __init__.py"),
        (f"{SOURCE}/reading.pyi", "", "reading.pyi hides `load` from type checkers"),
        ("packages/accel-new/README.md", "# new\n", "packages/accel-new: no pyproject.toml"),
    ],
)
def test_what_is_out_of_place_is_found(checkout, path, text, message):
    checkout.write(path, text)
    (problem,) = structure.problems(checkout.root)
    assert message in problem


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import yaml\n", "adding.py:1: `yaml` is of an extra"),
        ("X = {'load': 'accel_data.reading:load'}\n", "adding.py: names `accel_data`"),
        ("HINT = 'accel-data[yaml,json]'\n", "adding.py: `accel-data` has no extra `json`"),
    ],
)
def test_an_import_that_is_not_declared_is_found(checkout, code, message):
    checkout.write(f"{SOURCE}/adding.py", code)
    (problem,) = dependencies.problems(checkout.root)
    assert message in problem


def test_deptry_reads_imports_in_functions_and_what_is_declared(checkout):
    checkout.write(f"{SOURCE}/adding.py", "def late():\n    from scipy.linalg import svd\n")
    checkout.replace(PROJECT, '"numpy>=1.26"', '"numpy>=1.26", "requests>=2"')
    found = "".join(dependencies.by_deptry(read_packages(checkout.root)["accel-ops"]))
    assert "adding.py:2:5: DEP003 'scipy' imported but" in found
    assert "DEP002 'requests' defined as a dependency but not used" in found


def test_a_stub_may_not_name_what_is_not_declared(checkout):
    checkout.write(f"{SOURCE}/adding.pyi", "from accel_data import load as load\n")
    (problem,) = dependencies.problems(checkout.root)
    assert "adding.pyi: names `accel_data`" in problem


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"pyyaml>=6.0"', '"pyyaml>=6.0", "timm>=1"', "`timm` is declared, nothing imports it"),
        ('["pyyaml>=6.0"]', '["pyyaml>=6.0", "accel-ops[yaml]~=0.1"]', "must name three parts of a version"),
        ('["pyyaml>=6.0"]', '["pyyaml>=6.0", "accel-ops[yaml]~=0.0.9"]', "does not admit 0.1.0"),
        ('">=3.11"', '">=3.12"', "different requirements of Python"),
        ("Python :: 3.13", "Python :: 3.14", "different requirements of Python"),
    ],
)
def test_a_wrong_declaration_is_found(checkout, old, new, message):
    checkout.replace(PROJECT, old, new)
    assert any(message in problem for problem in dependencies.problems(checkout.root))


def test_the_readme_names_the_ranges_that_are_declared(checkout):
    checkout.write("README.md", "Tested with torch 2.10 to 2.15, Python 3.11 to 3.12.\n")
    checkout.replace(PROJECT, '"numpy>=1.26"', '"numpy>=1.26", "torch>=2.9"')
    checkout.write(f"{SOURCE}/tensors.py", "import torch\n")
    assert dependencies.problems(checkout.root) == [
        "README.md: does not say `torch 2.9 to `, which the packages declare",
        "README.md: does not say `Python 3.11 to 3.13`, which the packages declare",
    ]


def test_a_cycle_is_shown_from_its_first_module():
    assert cycle_of({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert cycle_of({"d": {"c"}, "c": {"b"}, "b": {"d"}}) == ["b", "d", "c", "b"]
