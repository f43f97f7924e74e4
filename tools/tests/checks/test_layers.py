import pytest

from tools.checks.layers import problems, runtime_problems, statement_problems, stub_problems, text_problems


def src(package):
    return f"packages/{package}/src/{package.replace('-', '_')}"


def test_a_tidy_checkout_is_fine(checkout):
    assert problems(checkout.root) == []


@pytest.mark.parametrize(
    ("package", "code", "message"),
    [
        ("accel-state", "import accel_ops\n", "accel_state is not allowed to import accel_ops"),
        ("accel-ops", "def f():\n    import accel_data\n", "accel_ops is not allowed to import accel_data"),
        ("accel-data", "import accel_backends\n", "accel_data is not allowed to import accel_backends"),
        ("accel-launch", "def f():\n    import torch\n", "accel_launch is not allowed to import torch"),
        (
            "accel-launch",
            "import accel_launch.rendezvous\n",
            "Programs that run as children are imported by nothing",
        ),
    ],
)
def test_an_import_against_the_layers_is_told(checkout, package, code, message):
    assert not list(statement_problems(checkout.root))
    checkout.write(f"{src(package)}/planted.py", code)
    assert message in "".join(statement_problems(checkout.root))


def test_the_torch_free_half_may_not_reach_torch_by_a_detour(checkout):
    checkout.write(f"{src('accel-state')}/devices.py", "import torch\n")
    checkout.write(f"{src('accel-state')}/topology.py", "def f():\n    from accel_state import devices\n")
    assert "accel_state.topology" in "".join(statement_problems(checkout.root))


def test_the_notebook_launcher_may_reach_torch(checkout):
    checkout.write(f"{src('accel-launch')}/notebook/__init__.py", "")
    checkout.write(f"{src('accel-launch')}/notebook/launching.py", "def f():\n    import torch\n")
    assert not list(statement_problems(checkout.root))


def test_a_program_for_child_processes_may_import_torch(checkout):
    checkout.write(f"{src('accel-launch')}/rendezvous.py", "def main():\n    import torch\n")
    assert not list(statement_problems(checkout.root))


def test_an_import_for_the_type_checker_is_no_import(checkout):
    code = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n"
    checkout.write(f"{src('accel-state')}/topology.py", code)
    assert not list(statement_problems(checkout.root))


def test_a_lazy_table_may_not_point_upwards(checkout):
    checkout.write(f"{src('accel-ops')}/table.py", "X = {'load': 'accel_data.reading:load'}\n")
    (problem,) = text_problems(checkout.root)
    assert problem.endswith("table.py:1: the string names `accel_data.reading`, not below `accel_ops`")


def test_a_stub_may_not_point_upwards(checkout):
    checkout.write(f"{src('accel-data')}/face.pyi", "from accel_ops import gather as gather\n")
    assert not list(stub_problems(checkout.root))
    checkout.write(f"{src('accel-ops')}/face.pyi", "from accel_data import load as load\n")
    (problem,) = stub_problems(checkout.root)
    assert problem.endswith("face.pyi:1: the stub imports `accel_data`, not below `accel_ops`")


def test_a_torch_that_comes_along_at_run_time_is_told(checkout):
    checkout.write(f"{src('accel-state')}/topology.py", "__import__('tor' + 'ch')\n")
    assert not list(statement_problems(checkout.root))
    checkout.write(
        "packages/accel-state/src/torch.py", ""
    )  # a stand-in, so that the real one need not be loaded
    assert list(runtime_problems(checkout.root)) == ["importing `accel_state.topology` imports torch"]


def test_a_module_that_cannot_be_imported_is_told(checkout):
    checkout.write(f"{src('accel-launch')}/planted.py", "import no_such_module\n")
    (problem,) = runtime_problems(checkout.root)
    assert "`accel_launch.planted` cannot be imported" in problem
