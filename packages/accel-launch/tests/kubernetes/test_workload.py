from __future__ import annotations

import pytest

from accel_launch.kubernetes.workload import workload_of
from accel_state.errors import ConfigError

IMAGE = {"launcher": "kubernetes", "kubernetes_image": "image:1"}


@pytest.fixture
def workload_for(request_for):
    def make(flags, **rest):
        return workload_of(request_for(flags=IMAGE | flags, **rest), index_variable="INDEX")

    return make


def test_each_pod_starts_the_ranks_of_one_machine(workload_for):
    workload = workload_for({"num_processes": "16", "num_machines": "2", "mixed_precision": "bf16"})
    assert workload.command == (
        *("python3", "-m", "accel_launch", "launch", "--num_processes=16", "--num_machines=2"),
        *("--machine_rank=$(INDEX)", "--main_process_ip=$(MASTER_ADDR)", "--main_process_port=29500"),
        *("--mixed_precision=bf16", "--", "train.py"),
    )
    assert (workload.num_pods, workload.num_processes) == (2, 16)
    assert workload.resources == {"nvidia.com/gpu": "8"}


def test_one_pod_needs_no_meeting(workload_for):
    command = workload_for({"num_processes": "8"}).command
    assert [word for word in command if "$(" in word] == []


def test_what_config_and_environment_set_here_is_set_there(workload_for):
    workload = workload_for(
        {"use_cpu": "true"},
        config={"fsdp_config.fsdp_ignored_modules": "a.$b", "distributed_type": "FSDP"},
        environ={
            "FSDP_VERSION": "2",
            "CUDA_VISIBLE_DEVICES": "0",
            "NCCL_DEBUG": "INFO",
            "PATH": "/bin",
            "X": "1",
        },
    )
    assert "--fsdp_version=2" in workload.command
    assert workload.environ == {"NCCL_DEBUG": "INFO", "FSDP_IGNORED_MODULES": "a.$$b"}


def test_a_dollar_stays_a_dollar(request_for):
    request = request_for("train.py", "$(RANK)", flags=IMAGE | {"use_cpu": "true"})
    assert workload_of(request, index_variable="RANK").command[-1] == "$$(RANK)"


@pytest.mark.parametrize(
    ("flags", "gpus", "processes"),
    [
        ({"num_processes": "4"}, "4", 4),
        ({"kubernetes_gpus_per_node": "8", "num_machines": "2"}, "8", 16),
        ({"kubernetes_gpus_per_node": "8", "num_processes": "2"}, "8", 2),
        ({"use_cpu": "true", "num_processes": "4"}, None, 4),
        ({"use_cpu": "true"}, None, 1),
    ],
)
def test_how_many_gpus_and_processes_a_pod_has(workload_for, flags, gpus, processes):
    workload = workload_for(flags, gpus=("0", "1", "2"))
    assert (workload.resources.get("nvidia.com/gpu"), workload.num_processes) == (gpus, processes)


@pytest.mark.parametrize(
    ("script", "name"),
    [("Train_2.py", "accel-train-2"), ("a/" + "b" * 60 + ".py", "accel-" + "b" * 34), ("x-.py", "accel-x")],
)
def test_the_name_follows_from_the_script(request_for, script, name):
    request = request_for(script, flags=IMAGE | {"use_cpu": "true"})
    assert workload_of(request, index_variable="RANK").name == name


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"kubernetes_image": ""}, "needs `--kubernetes_image`"),
        ({}, "Give `--num_processes`"),
        (
            {"num_processes": "4", "kubernetes_gpus_per_node": "2"},
            "asks for 4 in each pod, but `--kubernetes_gpus_per_node` is 2",
        ),
        ({"use_cpu": "true", "kubernetes_job_name": "a" * 41}, "at most 40 characters"),
    ],
)
def test_what_cannot_be_run_is_refused(workload_for, flags, problem):
    with pytest.raises(ConfigError, match=problem):
        workload_for(flags)


def test_a_variable_from_a_secret_is_only_referred_to(workload_for):
    flags = {"use_cpu": "true", "kubernetes_secrets": "NCCL_DEBUG=store:level,HF_TOKEN=hub:token"}
    workload = workload_for(flags, environ={"NCCL_DEBUG": "INFO", "HF_TOKEN": "hf_secret"})
    assert workload.secrets == {"NCCL_DEBUG": ("store", "level"), "HF_TOKEN": ("hub", "token")}
    assert workload.environ == {}
