"""`accelerate` means accel."""

import pytest


def test_modules_and_names_are_the_same_objects(run_python):
    script = """
import json, pickle, sys
import accel.drop_in
import accelerate, accelerate.utils.operations
from accelerate.utils import DistributedType
import accel, accel.utils.operations
accelerate.patched = 1
print(json.dumps({
    "module": accelerate.utils.operations is accel.utils.operations is sys.modules["accelerate.utils.operations"],
    "spec": accel.utils.operations.__spec__.name,
    "class": DistributedType is accel.DistributedType,
    "pickled": pickle.loads(pickle.dumps(DistributedType.NO)) is accel.DistributedType.NO,
    "old pickle": pickle.loads(b"caccelerate.utils.dataclasses\\nDistributedType\\n.") is DistributedType,
    "patched": accel.patched,
    "listed": "Accelerator" in dir(accelerate),
    "torch": "torch" in sys.modules,
}))
"""
    assert run_python("-c", script) == {
        "module": True,
        "spec": "accel.utils.operations",
        "class": True,
        "pickled": True,
        "old pickle": True,
        "patched": 1,
        "listed": True,
        "torch": False,
    }


def test_the_version_is_that_of_the_interface(run_python):
    script = """
import json
import accel.drop_in
import accelerate
from importlib.metadata import distributions, requires, version
print(json.dumps([
    accelerate.__version__,
    version("accelerate"),
    requires("accelerate"),
    [found.metadata["Name"] for found in distributions()].count("accelerate"),
]))
"""
    version = "1.15.0"
    assert run_python("-c", script) == [version, version, None, 1]


def test_what_accel_does_not_have_fails_as_any_import_does(run_python):
    script = """
import json
import accel.drop_in
told = []
for line in ("import accelerate.nothing", "from accelerate import nothing", "from accelerate.utils import nothing"):
    try:
        exec(line)
    except ImportError as error:
        told.append([type(error).__name__, str(error).partition(" (")[0]])
print(json.dumps(told))
"""
    assert run_python("-c", script) == [
        ["ModuleNotFoundError", "No module named 'accelerate.nothing'"],
        ["ImportError", "cannot import name 'nothing' from 'accelerate'"],
        ["ImportError", "cannot import name 'nothing' from 'accel.utils'"],
    ]


def test_it_can_be_taken_back(run_python):
    script = """
import json, sys
from accel.drop_in import activate, deactivate, is_active
import accelerate.utils
activate()
deactivate()
told = [is_active(), [name for name in sys.modules if name.startswith("accelerate")]]
try:
    import accelerate
except ModuleNotFoundError as error:
    told.append(str(error))
print(json.dumps(told))
"""
    assert run_python("-c", script) == [False, [], "No module named 'accelerate'"]


@pytest.mark.parametrize("is_first", [True, False], ids=["imported before", "not imported"])
def test_accelerate_is_not_hidden(run_python, tmp_path, is_first):
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "__init__.py").touch()
    script = f"""
import json, sys
if {is_first}:
    import accelerate
try:
    import accel.drop_in
except Exception as error:
    finders = [finder for finder in sys.meta_path if "DropIn" in type(finder).__name__]
    print(json.dumps([type(error).__name__, str(error), len(finders)]))
"""
    kind, text, num_finders = run_python("-c", script, folders=(tmp_path,))
    assert kind == "StateError"
    assert str(tmp_path) in text
    assert "pip uninstall accelerate" in text
    assert num_finders == 0


def test_a_module_can_be_run_by_its_other_name(run_python):
    script = """
import accel.drop_in, json, runpy
found = runpy.run_module("accelerate.commands.plan", run_name="again")
print(json.dumps([found["__name__"], "PlanCommand" in found]))
"""
    assert run_python("-c", script) == ["again", True]


def test_the_bootstrap_runs_the_module_that_it_hides(run_python, tmp_path):
    """Python imports `sitecustomize` at its start; an environment may have one already."""
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.was_run = True\n")
    script = """
import builtins, json, runpy
from importlib.util import find_spec
runpy.run_path(find_spec("accel").submodule_search_locations[0] + "/drop_in/bootstrap/sitecustomize.py")
import accelerate
print(json.dumps([builtins.was_run, accelerate.__version__]))
"""
    assert run_python("-c", script, folders=(tmp_path,)) == [True, "1.15.0"]
