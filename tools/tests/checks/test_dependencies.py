import pytest

from tools.checks.dependencies import DECLARED_AHEAD, problems


@pytest.fixture(autouse=True)
def _nothing_is_declared_ahead(monkeypatch):
    for key in list(DECLARED_AHEAD):
        monkeypatch.delitem(DECLARED_AHEAD, key)


OPS = "packages/accel-ops/src/accel_ops"


def test_a_package_that_imports_what_it_declares_is_fine(checkout):
    assert problems(checkout.root) == []


@pytest.mark.parametrize(
    "code",
    [
        "import scipy\n",
        "from scipy.linalg import svd\n",
        "def late():\n    import scipy\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import scipy\n",
        "try:\n    import scipy\nexcept ImportError:\n    scipy = None\n",
        "import importlib\nscipy = importlib.import_module('scipy.linalg')\n",
    ],
)
def test_an_import_that_is_not_declared_is_told(checkout, code):
    checkout.write(f"{OPS}/adding.py", code)
    assert any("adding.py" in line and "(scipy): not declared" in line for line in problems(checkout.root))


def test_an_extra_may_be_imported_inside_a_function_only(checkout):
    checkout.write(f"{OPS}/adding.py", "import yaml\n")
    (problem,) = problems(checkout.root)
    assert "adding.py:1: `yaml` (pyyaml): it is an extra" in problem


def test_a_dependency_that_nothing_imports_is_told(checkout):
    checkout.replace("packages/accel-ops/pyproject.toml", '"numpy>=1.26"', '"numpy>=1.26", "requests>=2"')
    assert problems(checkout.root) == [
        "packages/accel-ops/pyproject.toml: `requests` is declared, nothing imports it"
    ]


def test_an_import_for_the_type_checker_alone_does_not_count_as_use(checkout):
    checkout.replace("packages/accel-ops/pyproject.toml", '"numpy>=1.26"', '"numpy>=1.26", "requests>=2"')
    code = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import requests\n"
    checkout.write(f"{OPS}/adding.py", code)
    assert len(problems(checkout.root)) == 1


def test_a_string_that_names_a_module_of_a_sibling_needs_the_sibling(checkout):
    checkout.write(f"{OPS}/table.py", "NAMES = {'load': 'accel_state.reading:load'}\n")
    (problem,) = problems(checkout.root)
    assert "`accel_state.reading` (accel-state): not declared" in problem


def test_a_module_of_a_vendor_needs_no_declaration_inside_a_function(checkout):
    checkout.write(f"{OPS}/vendor.py", "def probe():\n    import torch_npu\n")
    assert problems(checkout.root) == []


def test_an_extra_that_does_not_exist_may_not_be_named(checkout):
    checkout.write(
        f"{OPS}/adding.py", "HINT = 'Run `pip install accel-data[yaml]` or `accel-data[yaml,json]`.'\n"
    )
    (problem,) = problems(checkout.root)
    assert problem.endswith("adding.py:1: `accel-data` has no extra `json`")


def test_what_is_declared_ahead_must_still_be_ahead(checkout, monkeypatch):
    monkeypatch.setitem(DECLARED_AHEAD, ("accel-ops", "numpy"), "a reason")
    assert problems(checkout.root) == [
        "tools/checks/dependencies.py: `DECLARED_AHEAD` needs (accel-ops, numpy) no more"
    ]


OPS_PROJECT = "packages/accel-ops/pyproject.toml"


@pytest.mark.parametrize(
    ("range_", "told"),
    [
        ("~=0.1", "`accel-state[yaml]~=0.1` must name three parts of a version"),
        (">=0.1.0", "`accel-state[yaml]>=0.1.0` must name three parts of a version"),
        ("~=0.1.1", "`accel-state[yaml]~=0.1.1` does not admit 0.1.0"),
        ("~=0.0.9", "`accel-state[yaml]~=0.0.9` does not admit 0.1.0"),
    ],
)
def test_a_range_of_a_sibling_names_three_parts_and_admits_the_checkout(checkout, range_, told):
    checkout.replace(OPS_PROJECT, '["pyyaml>=6.0"]', f'["pyyaml>=6.0", "accel-state[yaml]{range_}"]')
    (problem,) = problems(checkout.root)
    assert problem.startswith(f"{OPS_PROJECT}: {told}")


def test_packages_that_want_different_releases_of_torch_are_told(checkout):
    checkout.replace(OPS_PROJECT, '"numpy>=1.26"', '"numpy>=1.26", "torch>=2.9"')
    checkout.replace("packages/accel-data/pyproject.toml", '"numpy>=1.26"', '"numpy>=1.26", "torch>=2.10"')
    line = "packages/*/pyproject.toml: different requirements of torch: torch>=2.10, torch>=2.9"
    assert line in problems(checkout.root)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('">=3.11"', '">=3.12"', "its `requires-python` is not that of `accel`"),
        ("Python :: 3.13", "Python :: 3.14", "its Python classifiers are not those of `accel`"),
    ],
)
def test_packages_that_want_different_pythons_are_told(checkout, old, new, told):
    checkout.replace(OPS_PROJECT, old, new)
    assert problems(checkout.root) == [f"{OPS_PROJECT}: {told}"]


def test_the_required_python_is_the_first_that_is_named(checkout):
    for file in (checkout.root / "packages").glob("*/pyproject.toml"):
        file.write_text(file.read_text().replace('">=3.11"', '">=3.10"'))
    told = "`requires-python` is not `>=3.11`, the first classifier"
    assert problems(checkout.root) == [f"packages/accel/pyproject.toml: {told}"]


def test_the_readme_names_the_range_that_is_declared(checkout):
    checkout.write("README.md", "Tested with torch 2.10 to 2.15, Python 3.11 to 3.12.\n")
    checkout.replace(OPS_PROJECT, '"numpy>=1.26"', '"numpy>=1.26", "torch>=2.9"')
    checkout.write(f"{OPS}/tensors.py", "import torch\n")
    assert problems(checkout.root) == [
        "README.md: does not say `torch 2.9 to `, which the packages declare",
        "README.md: does not say `Python 3.11 to 3.13`, which the packages declare",
    ]
