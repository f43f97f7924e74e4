"""Each package separately: installed from its wheel with what it declares, it runs the example of its README."""

import subprocess
from importlib.metadata import distributions

import pytest
from documented import blocks
from reference_pages import installed_with

from tools.environments import Environment
from tools.workspace import ROOT, read_packages, requirement_name

pytestmark = pytest.mark.engine("alone")

OTHERS = {"accel-backends": {"delayed-averaging"}}
WITH_RANKS = ("accel-state", "accel-ops", "accel-checkpoint", "accel-data", "accel-backends", "accel")
EXAMPLES = [
    *((package, 1) for package in read_packages() if package != "accel-launch"),
    *((package, 2) for package in WITH_RANKS),
]
"""Packages whose README has Python, and on how many ranks it is run."""
OF_A_GROUP = """
import torch.distributed as dist
dist.init_process_group("gloo")
{}
if dist.is_initialized():
    dist.destroy_process_group()
"""
LAUNCHED = """
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
ranks = torch.ones(1)
dist.all_reduce(ranks)
if dist.get_rank() == 0:
    ours = [name for name in sys.modules if name.startswith("accel")]
    print(f"{ranks.item():g} ranks, arguments {sys.argv[1:]}, modules of accel: {ours}")
dist.destroy_process_group()
"""
TRACKED = """
import torch
from accel import Accelerator
accelerator = Accelerator(cpu=True, log_with="jsonl", project_dir=".")
accelerator.init_trackers("loop", config={"lr": 0.1})
model = accelerator.prepare(torch.nn.Linear(4, 1))
accelerator.log({"loss": 0.5}, step=0)
accelerator.save_state("state")
accelerator.load_state("state")
accelerator.end_training()
accelerator.print("saved")
"""
STRATEGY = """
from accel_backends import select_strategy
from accel_state import PartialState, current_runtime
from delayed_averaging import DelayedAveragingPlugin
PartialState(cpu=True)
name = "delayed_averaging"
print(select_strategy(name, topology=current_runtime().topology, plugin=DelayedAveragingPlugin()).name)
"""


def environment_of(package):
    return Environment(f"alone.{package}")


def run(package, *words, folder, program="python"):
    """Run a program of the package's environment in an empty folder and return what it prints."""
    environment = environment_of(package)
    environ = environment.child_environ() | {"HF_HOME": str(folder)}
    command = [environment.program(program), *words]
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("package", read_packages())
def test_nothing_is_installed_but_what_the_table_of_dependencies_names(package):
    (site_packages,) = environment_of(package).folder.glob("lib/python*/site-packages")
    installed = {requirement_name(each.name): each for each in distributions(path=[str(site_packages)])}
    expected = installed_with(package) | OTHERS.get(package, set())
    assert expected <= installed.keys()
    assert installed.keys() <= expected | brought_by("torch", installed)


def brought_by(name, installed):
    """Return ``name`` and the installed distributions that it requires, directly or not."""
    required = {requirement_name(each) for each in installed[name].requires or ()} & installed.keys()
    return {name}.union(*(brought_by(each, installed) for each in required))


@pytest.mark.parametrize(("package", "number"), EXAMPLES)
def test_the_example_of_its_readme_runs(tmp_path, package, number):
    code = "".join(block.text for block in blocks(ROOT / "packages" / package / "README.md", "python"))
    assert code
    (tmp_path / "example.py").write_text(OF_A_GROUP.format(code) if number > 1 else code)
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={number}"]
    run(package, *(torchrun if number > 1 else []), "example.py", folder=tmp_path)


def test_a_strategy_of_another_package_is_found(tmp_path):
    assert run("accel-backends", "-c", STRATEGY, folder=tmp_path) == "delayed_averaging\n"


def test_a_script_without_accel_is_launched_on_two_processes(tmp_path):
    (tmp_path / "launched.py").write_text(LAUNCHED)
    words = ["launch", "--cpu", "--num_processes", "2", "launched.py", "--num_processes", "3"]
    printed = run("accel-launch", *words, folder=tmp_path, program="accel")
    assert printed == "2 ranks, arguments ['--num_processes', '3'], modules of accel: []\n"


def test_the_umbrella_launches_tracks_and_saves(tmp_path):
    (tmp_path / "tracked.py").write_text(TRACKED)
    words = ["launch", "--cpu", "--num_processes", "2", "tracked.py"]
    assert run("accel", *words, folder=tmp_path, program="accel") == "saved\n"
    assert '"loss": 0.5' in (tmp_path / "loop" / "metrics.jsonl").read_text()
