"""The names and modules that only `import accel` makes reachable."""

import inspect
import json
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import accel
import accel.utils

INTERFACE = Path(__file__).with_name("interface_names.txt").read_text().split()
SUBMODULES = sorted({entry.split(":")[0].split(".")[1] for entry in INTERFACE if "." in entry.split(":")[0]})


def in_a_fresh_python(script: str) -> object:
    """Return what the script prints, as JSON."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_submodules_are_attributes_without_a_separate_import():
    script = f"""
import json, sys, types
import accel
submodules = {SUBMODULES}
before = [name for name in submodules if "accel." + name in sys.modules]
listed = set(submodules) <= set(dir(accel))
modules = [isinstance(getattr(accel, name), types.ModuleType) for name in submodules]
below = [
    accel.utils.operations is sys.modules["accel.utils.operations"],
    accel.utils.operations.gather is accel.utils.gather,
    callable(accel.utils.tqdm),
    accel.commands.config.default is sys.modules["accel.commands.config.default"],
    "random" in dir(accel.utils),
]
print(json.dumps([before, listed, all(modules), all(below)]))
"""
    assert in_a_fresh_python(script) == [[], True, True, True]


def test_a_submodule_is_no_name_for_a_star_import():
    script = """
import json, logging
from accel import *
print(json.dumps([logging.__name__, "utils" in globals(), "Accelerator" in globals()]))
"""
    assert in_a_fresh_python(script) == ["logging", False, True]


@pytest.mark.parametrize(
    "name",
    [
        "Accelerator",
        "AORecipeKwargs",
        "DeepSpeedPlugin",
        "DistributedDataParallelKwargs",
        "FullyShardedDataParallelPlugin",
        "MegatronLMPlugin",
        "ParallelismConfig",
        "TorchDynamoPlugin",
        "TorchTensorParallelPlugin",
    ],
)
def test_annotations_of_what_users_construct_can_be_evaluated(name):
    kind = getattr(accel, name, None) or getattr(accel.utils, name)
    typing.get_type_hints(kind)
    for member in vars(kind).values():
        function = member.fget if isinstance(member, property) else member
        if inspect.isfunction(function):
            typing.get_type_hints(function)
