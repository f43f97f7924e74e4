from __future__ import annotations

import pytest

from accel_launch.launchers.selection import BUILT_IN, select_launcher
from accel_launch.launchers.single import SingleProcessLauncher
from accel_state.errors import ConfigError, UnknownNameError
from accel_state.registry import Registry, distribution_of, entry_points


class Greedy(SingleProcessLauncher):
    name = "greedy"

    def accepts(self, request):
        return True


ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}
TASK = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "2",
}
TWO = {"num_machines": "2", "num_processes": "4"}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, "single"),
        ({"flags": {"num_processes": "3"}}, "local"),
        ({"config": {"distributed_type": "FSDP"}}, "local"),
        ({"config": {"distributed_type": "DEEPSPEED"}}, "local"),
        ({"flags": TWO}, "machines"),
    ],
)
def test_the_launcher_follows_from_the_request(request_for, given, name):
    assert select_launcher(request_for(**given)).name == name


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"config": {"distributed_type": "DEEPSPEED"}, "flags": TWO}, "deepspeed"),
        (
            {
                "config": {"distributed_type": "DEEPSPEED"},
                "flags": TWO | {"deepspeed_multinode_launcher": "standard"},
            },
            "machines",
        ),
        ({"config": {"distributed_type": "XLA"}}, "tpu"),
        ({"config": {"distributed_type": "XLA", "tpu_use_cluster": True}}, "tpu-pod"),
        ({"config": {"compute_environment": "AMAZON_SAGEMAKER"}}, "sagemaker"),
        ({"flags": {"use_mpirun": "true", "num_processes": "2"}}, "mpi"),
        ({"flags": {"hosts": "a,b"}}, "ssh"),
        ({"flags": {"slurm": "true"}}, "slurm"),
        ({"flags": {"max_restarts": "1"}}, "local"),
        ({"flags": {"tee": "3"}}, "local"),
        ({"flags": TWO | {"tee": "3"}}, "machines"),
        ({"flags": TWO | {"max_restarts": "1"}}, "elastic"),
        ({"flags": TWO | {"rdzv_backend": "c10d"}}, "elastic"),
        ({"environ": ALLOCATION}, "srun"),
        ({"environ": ALLOCATION | TASK}, "single"),
        ({"environ": ALLOCATION, "flags": {"num_machines": "1"}}, "single"),
        ({"environ": ALLOCATION, "config": {"num_machines": 2, "machine_rank": 0}}, "srun"),
        ({"environ": ALLOCATION, "config": {"num_machines": 2}, "flags": {"machine_rank": "1"}}, "machines"),
    ],
)
def test_the_route_is_the_first_whose_sign_is_there(request_for, given, name):
    assert select_launcher(request_for(**given)).name == name


@pytest.fixture
def registry():
    made = Registry("launcher", "accel.launchers")
    made.register("greedy", Greedy)
    return made


def test_a_launcher_of_another_package_comes_before_ours(request_for, registry):
    assert select_launcher(request_for(), registry).name == "greedy"


def test_launchers_of_other_packages_come_in_the_order_of_their_names(request_for, registry):
    registry.register("avid", type("Avid", (Greedy,), {"name": "avid"}))
    assert select_launcher(request_for(), registry).name == "avid"


@pytest.mark.parametrize(
    "given",
    [
        {"flags": {"launcher": "local"}},
        {"environ": {"ACCEL_LAUNCHER": "local"}},
        {"config": {"launcher": "local"}},
        {"flags": {"launcher": "local"}, "environ": {"ACCEL_LAUNCHER": "greedy"}},
    ],
)
def test_a_named_launcher_decides(request_for, registry, given):
    assert select_launcher(request_for(**given), registry).name == "local"


def test_a_launcher_that_is_named_need_not_accept(request_for):
    registry = Registry("launcher", "no.such.group")
    registry.register("shy", type("Shy", (Greedy,), {"name": "shy", "accepts": lambda self, request: False}))
    assert select_launcher(request_for(flags={"launcher": "shy"}), registry).name == "shy"


def test_auto_chooses_again_where_the_environment_names_one(request_for):
    given = {"flags": {"launcher": "auto"}, "environ": {"ACCEL_LAUNCHER": "local"}}
    assert select_launcher(request_for(**given)).name == "single"


def test_an_unknown_launcher_is_refused_with_the_nearest(request_for):
    with pytest.raises(UnknownNameError, match="Unknown launcher `kubernets`.* Known: .*ray.* `kubernetes`"):
        select_launcher(request_for(flags={"launcher": "kubernets"}))


@pytest.mark.parametrize(
    ("name", "rest", "needs"),
    [
        ("sagemaker", {}, "`compute_environment: AMAZON_SAGEMAKER`"),
        ("ssh", {}, "`--hosts` or `--hostfile`"),
        ("tpu", {}, "`--tpu`"),
        ("tpu-pod", {}, "`--tpu`"),
        ("srun", {}, "a SLURM job"),
        ("deepspeed", {}, "`--use_deepspeed`"),
        ("local", TWO, "`--num_machines 1`"),
        ("single", {"num_processes": "2"}, "`--num_processes 1`"),
    ],
)
def test_a_launcher_that_is_named_names_what_it_lacks(request_for, name, rest, needs):
    with pytest.raises(ConfigError, match=f"`--launcher {name}` needs {needs}"):
        select_launcher(request_for(flags={"launcher": name, **rest}))


def test_our_launchers_are_those_that_are_known_as_ours():
    ours = {
        point.name for point in entry_points("accel.launchers") if distribution_of(point) == "accel-launch"
    }
    assert ours == set(BUILT_IN)
