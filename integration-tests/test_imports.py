"""What comes along with the main names of each package, in an environment that has everything."""

import json
import os
import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest
from reference_pages import ROOT, installed_with

from tools.harness.scripts import run_command
from tools.workspace import read_packages, requirement_name

IMPORTS = {
    "accel-state": "from accel_state import PartialState",
    "accel-ops": "from accel_ops import find_executable_batch_size, gather, reduce, set_seed",
    "accel-checkpoint": "from accel_checkpoint import CheckpointFolder",
    "accel-backends": "from accel_backends import Bundle, StrategyContext, select_precision, select_strategy",
    "accel-bigmodel": "from accel_bigmodel import "
    "init_empty_weights, load_checkpoint_and_dispatch, merge_fsdp_weights, save_model",
    "accel-data": "from accel_data import gather_for_metrics, prepare_data_loader",
    "accel-launch": "from accel_launch import main, notebook_launcher",
    "accel-trackers": "from accel_trackers import BackgroundLog, GeneralTracker, filter_trackers, start_trackers",
    "accel": "from accel import Accelerator",
}
LOADED = """
import json, os, sys
import torch
before = set(sys.modules)
for package, statement in json.loads(sys.argv[1]).items():
    if os.fork() == 0:
        exec(statement)
        loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
        print(json.dumps([package, sorted(loaded - sys.stdlib_module_names - {"torch"})]), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def loaded():
    """Return by package the modules that were not there after `import torch`."""
    done = run_command([sys.executable, "-c", LOADED, json.dumps(IMPORTS)], timeout_s=220)
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("package", read_packages())
def test_a_package_imports_only_what_is_installed_with_it(loaded, package):
    distributions = packages_distributions()
    installed = installed_with(package)
    assert loaded[package]
    for name in loaded[package]:
        assert installed & set(map(requirement_name, distributions.get(name, [name]))), name


WITH_TORCH = {"accel_launch.elastic_agent", "accel_launch.notebook", "accel_launch.static_rendezvous"}
FREE = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    assert "torch" not in sys.modules, name
"""


def test_the_launcher_the_faces_and_the_lower_half_of_accel_state_import_no_torch():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (contract,) = (each for each in settings["contracts"] if each["id"] == "torch-free-state")
    free = (*(f"{each}." for each in contract["source_modules"]), "accel_launch.")
    names = [package.import_name for package in read_packages().values()]
    names += [
        name
        for package in read_packages().values()
        for name, _ in package.modules()
        if f"{name}.".startswith(free) and name not in WITH_TORCH and not name.endswith("__main__")
    ]
    assert len(names) > 100
    done = run_command([sys.executable, "-c", FREE, *names])
    assert done.returncode == 0, done.stderr
