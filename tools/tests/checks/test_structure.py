import shutil

import pytest

from tools.checks.structure import problems

OPS = "packages/accel-ops"


def test_a_tidy_checkout_is_fine(checkout):
    assert problems(checkout.root) == []


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        (f"{OPS}/README.md", " \n", "README.md: missing or empty"),
        (f"{OPS}/src/accel_ops/version.py", '__version__ = "0.1.0"\n', "a second `__version__`"),
        (f"{OPS}/src/accel_ops/__init__.py", '__version__ = "0.2.0"\n', "no section `## 0.2.0`"),
        (f"{OPS}/src/accel_ops/utils.py", "", "`utils` does not say what is in it"),
        (f"{OPS}/src/accel_ops/helpers/seeds.py", "", "`helpers` does not say what is in it"),
        (f"{OPS}/src/stranger/__init__.py", "", "`stranger` does not belong here"),
        (f"{OPS}/tests/test_nothing_real.py", "", "nothing in src/accel_ops is mirrored by it"),
        (f"{OPS}/tests/deep/test_reading.py", "", "nothing in src/accel_ops is mirrored by it"),
        (f"{OPS}/tests/__init__.py", "", "test folders have no __init__.py"),
        (
            f"{OPS}/src/accel_ops/env.py",
            "import os\nX = os.environ['A']\n",
            "env.py:2: the environment is read",
        ),
        (f"{OPS}/src/accel_ops/env.py", "import os\nos.getenv('A')\n", "env.py:2: the environment is read"),
        (f"{OPS}/src/accel_ops/env.py", "from os import environ\n", "env.py:1: the environment is read"),
        ("packages/accel-new/README.md", "# new\n", "packages/accel-new: no pyproject.toml"),
    ],
)
def test_what_is_out_of_place_is_told(checkout, path, text, message):
    checkout.write(path, text)
    (problem,) = problems(checkout.root)
    assert message in problem


def test_a_module_with_a_stub_has_no_code_of_its_own(checkout):
    checkout.write(f"{OPS}/src/accel_ops/state.pyi", "from accel_state import PartialState as PartialState\n")
    checkout.write(f"{OPS}/src/accel_ops/state.py", "__getattr__, __dir__, __all__ = attach_stub(__name__)\n")
    assert problems(checkout.root) == []
    checkout.write(f"{OPS}/src/accel_ops/state.py", "class State: ...\n")
    (problem,) = problems(checkout.root)
    assert "accel_ops/state.py:1: state.pyi hides `State` from type checkers" in problem


def test_a_test_may_name_an_aspect_of_the_module_or_folder_it_mirrors(checkout):
    checkout.write(f"{OPS}/src/accel_ops/nested/walking.py", "")
    for name in ("test_reading_twice", "test_nested", "nested/test_walking", "nested/test_walking_dicts"):
        checkout.write(f"{OPS}/tests/{name}.py", "")
    assert problems(checkout.root) == []


def test_the_environment_may_be_touched_behind_its_door(checkout):
    checkout.write(
        "packages/accel-state/src/accel_state/environment/environ.py", "import os\nX = os.environ\n"
    )
    assert problems(checkout.root) == []


def test_a_package_without_py_typed_or_tests_is_told(checkout):
    (checkout.root / OPS / "src/accel_ops/py.typed").unlink()
    shutil.rmtree(checkout.root / OPS / "tests")
    assert len(problems(checkout.root)) == 2


def test_a_folder_with_another_name_than_its_distribution_is_told(checkout):
    checkout.replace(f"{OPS}/pyproject.toml", 'name = "accel-ops"', 'name = "accel-operations"')
    assert problems(checkout.root) == ["packages/accel-ops: the distribution is called `accel-operations`"]


def test_a_version_in_pyproject_is_told(checkout):
    checkout.replace(f"{OPS}/pyproject.toml", 'dynamic = ["version"]', 'version = "0.1.0"')
    (problem,) = problems(checkout.root)
    assert "version belongs into src/accel_ops/__init__.py" in problem
