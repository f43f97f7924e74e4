from __future__ import annotations

import pytest

from accel_launch.launchers.routes import route
from accel_launch.launchers.selection import select_launcher
from accel_launch.launchers.single import SingleProcessLauncher
from accel_state.errors import ConfigError, LaunchError
from accel_state.registry import Registry


class Greedy(SingleProcessLauncher):
    name = "greedy"

    def accepts(self, request):
        return True


ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}
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
        ({"flags": {"max_restarts": "1"}}, "elastic"),
        ({"flags": {"tee": "3"}}, "elastic"),
        ({"flags": TWO | {"rdzv_backend": "c10d"}}, "elastic"),
        ({"environ": ALLOCATION}, "srun"),
        ({"environ": ALLOCATION | {"SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}}, "single"),
        ({"environ": ALLOCATION, "flags": {"num_machines": "1"}}, "single"),
    ],
)
def test_the_route_is_the_first_whose_sign_is_there(request_for, given, name):
    assert route(request_for(**given)) == name


def test_what_nobody_can_start_is_refused(request_for):
    registry = Registry("launcher", "no.such.group")
    with pytest.raises(LaunchError, match="No launcher can start 1 process on 1 machine. Installed .*: none"):
        select_launcher(request_for(), registry)


def test_two_launchers_that_claim_one_request_are_refused(request_for):
    registry = Registry("launcher", "accel.launchers")
    registry.register("greedy", Greedy)
    with pytest.raises(ConfigError, match="`greedy` and `single` both claim to start 1 process"):
        select_launcher(request_for(), registry)
