from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from accel_launch.launchers.local import LocalLauncher
from accel_launch.plan import LaunchPlan
from accel_state.errors import ConfigError, LaunchError


def plan(request_for, *command, **given) -> LaunchPlan:
    given["flags"] = {"num_processes": "2"} | given.get("flags", {})
    return LocalLauncher().plan(request_for(*command, **given))


@pytest.mark.parametrize(
    ("given", "accepts"),
    [
        ({}, False),
        ({"flags": {"num_processes": "2"}}, True),
        ({"flags": {"num_processes": "2"}, "config": {"num_machines": 2}}, False),
        ({"config": {"distributed_type": "FSDP"}}, True),
        ({"gpus": ("0", "1")}, True),
        ({"flags": {"num_processes": "2", "max_restarts": "1"}}, True),
    ],
)
def test_takes_several_processes_on_one_machine_and_engines_that_want_a_rank(request_for, given, accepts):
    assert LocalLauncher().accepts(request_for(**given)) is accepts


def test_plans_one_process_for_each_rank_with_the_variables_of_torchrun(request_for):
    made = plan(request_for, "train.py", "--num_processes", "3", "--", "-h", flags={"use_cpu": "true"})
    assert (made.num_ranks, made.port, made.grace_period_s, made.report) == (2, None, 30.0, None)
    assert [process.rank for process in made.processes] == [0, 1]
    for rank, process in enumerate(made.processes):
        assert process.argv == ("python", "-u", "train.py", "--num_processes", "3", "--", "-h")
        assert dict(process.environ) == {
            "ACCELERATE_USE_CPU": "true",
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "OMP_NUM_THREADS": "4",
            "RANK": str(rank),
            "ROLE_NAME": "default",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": "2",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            "WORLD_SIZE": "2",
        }


@pytest.mark.parametrize(
    ("given", "threads"),
    [
        ({}, "4"),
        ({"flags": {"num_processes": "3"}}, "2"),
        ({"flags": {"num_processes": "20"}}, "1"),
        ({"environ": {"OMP_NUM_THREADS": "6"}}, "6"),
        ({"environ": {"OMP_NUM_THREADS": "6"}, "flags": {"num_cpu_threads_per_process": "5"}}, "5"),
    ],
)
def test_cores_are_divided_among_the_processes_unless_configured_otherwise(request_for, given, threads):
    assert {process.environ["OMP_NUM_THREADS"] for process in plan(request_for, **given).processes} == {
        threads
    }


@pytest.mark.parametrize(
    ("given", "port"),
    [
        ({}, None),
        ({"flags": {"master_port": "0"}}, None),
        ({"config": {"main_process_port": 29512}}, 29512),
        ({"environ": {"MASTER_PORT": "29513"}}, 29513),
        ({"environ": {"MASTER_PORT": "29513", "TORCHELASTIC_RUN_ID": "outer"}}, None),
    ],
)
def test_a_port_is_found_unless_one_is_named_for_this_run(request_for, given, port):
    assert plan(request_for, **given).port == port


def test_grace_period_report_and_quiet_reach_the_plan(request_for):
    made = plan(request_for, flags={"grace_period_s": "2.5", "report": "out/r.json"}, is_quiet=True)
    assert (made.grace_period_s, str(made.report), made.is_quiet) == (2.5, "/srv/out/r.json", True)


def test_a_launch_within_a_rank_starts_a_separate_run(request_for):
    outer = {"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_ERROR_FILE": "/e", "MASTER_ADDR": "10.0.0.1"}
    process = plan(request_for, environ=outer).processes[0]
    assert process.unset == ("TORCHELASTIC_ERROR_FILE",)
    assert process.environ["MASTER_ADDR"] == "127.0.0.1"


def test_a_port_in_use_is_refused_before_anything_starts(request_for):
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        made = plan(request_for, flags={"master_port": str(port)})
        with pytest.raises(LaunchError, match=f"`--main_process_port` is {port}, .* Choose another, or 0"):
            LocalLauncher().run(made)


def test_more_ranks_than_accelerators_are_refused(request_for):
    with pytest.raises(ConfigError, match="asks for 4 on this machine, but a process can use only 2"):
        plan(request_for, flags={"num_processes": "4"}, gpus=("0", "1"))
    assert plan(request_for, flags={"num_processes": "4", "use_cpu": "true"}, gpus=("0", "1")).num_ranks == 4
    assert plan(request_for, flags={"num_processes": "4"}).num_ranks == 4


def test_more_ranks_than_there_can_be_are_refused_at_once(request_for):
    request = request_for(flags={"num_processes": "99999"})
    limited = replace(request, machine=replace(request.machine, max_open_files=1024))
    with pytest.raises(
        ConfigError, match="asks for 99999 on this machine, .* open files, but it may have 1024"
    ):
        LocalLauncher().plan(limited)


def test_a_script_whose_name_begins_with_a_dash_is_no_option_of_python(request_for):
    assert plan(request_for, "-dash.py", "-x").processes[0].argv == ("python", "-u", "./-dash.py", "-x")


@pytest.mark.parametrize("gpu_ids", [{}, {"gpu_ids": "0"}])
def test_more_ranks_than_accelerators_share_them_on_request(request_for, gpu_ids):
    flags = {"num_processes": "2", **gpu_ids}
    with pytest.raises(ConfigError, match=r"`--share_gpus`"):
        plan(request_for, flags=flags, gpus=("0",))
    made = plan(request_for, flags={**flags, "share_gpus": "true"}, gpus=("0",))
    assert [process.environ["ACCEL_SHARE_GPUS"] for process in made.processes] == ["true", "true"]


def test_ranks_next_to_accelerators_have_one_thread_and_what_the_person_set_stays(request_for):
    environ = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    (first, *_) = plan(request_for, gpus=("0", "1"), environ=environ).processes
    assert first.environ["OMP_NUM_THREADS"] == "1"
    assert first.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"
