from __future__ import annotations

import pytest

from accel_launch.launchers.elastic import ElasticLauncher, address_towards
from accel_state.errors import ConfigError

PROGRAM = ("python", "-P", "-m", "accel_launch.elastic_agent")
TWO = {"num_machines": "2", "num_processes": "4", "rdzv_backend": "c10d"}
MEETING = {"master_addr": "10.0.0.1", "master_port": "29501"}


def plan_of(request_for, **flags):
    return ElasticLauncher().plan(request_for("train.py", "--", "-h", flags=flags))


def flags_of(request_for, **flags):
    (agent,) = plan_of(request_for, **flags).processes
    assert agent.argv[:4] == PROGRAM
    return list(agent.argv[4 : agent.argv.index("--no_python")])


def test_takes_machines_that_have_to_agree(request_for):
    accepts = ElasticLauncher().accepts
    assert accepts(request_for(flags=TWO))
    assert accepts(request_for(flags=TWO | {"rdzv_backend": "static", "max_restarts": "1"}))
    assert not accepts(request_for(flags=TWO | {"rdzv_backend": "static"}))
    assert not accepts(request_for(flags={"num_processes": "2", "max_restarts": "1"}))


def test_torchs_agent_starts_the_ranks_of_this_machine(request_for):
    plan = plan_of(request_for, **TWO, **MEETING, machine_rank="1", max_restarts="3")
    assert (plan.num_ranks, plan.max_restarts, plan.port) == (4, 0, None)
    (agent,) = plan.processes
    assert agent.argv[-5:] == ("python", "-u", "train.py", "--", "-h")
    assert "RANK" not in agent.environ
    assert {"RANK", "LOCAL_RANK", "MASTER_ADDR"} < set(agent.unset)


def test_the_agent_gets_what_the_machines_must_know_of_each_other(request_for):
    assert flags_of(request_for, **TWO, **MEETING) == [
        "--nnodes=2",
        "--nproc_per_node=2",
        "--rdzv_backend=c10d",
        "--rdzv_endpoint=10.0.0.1:29501",
        "--rdzv_id=accel",
        "--rdzv_conf=is_host=true",
        "--max_restarts=0",
        "--monitor_interval=0.1",
        "--role=default",
    ]


def test_machines_with_set_ranks_meet_in_a_plain_store(request_for):
    flags = flags_of(
        request_for, **(TWO | {"rdzv_backend": "static"}), **MEETING, max_restarts="1", machine_rank="1"
    )
    assert {"--rdzv_backend=accel-static", "--rdzv_conf=rank=1"} < set(flags)


def test_prefixes_and_shown_ranks_reach_the_agent(request_for):
    flags = flags_of(request_for, **TWO, **MEETING, prefix="true", show_ranks="0,3", machine_rank="1")
    assert {"--tee=3", "--local_ranks_filter=1"} < set(flags)


@pytest.mark.parametrize(
    ("endpoint", "address"), [("127.0.0.1:29500", "127.0.0.1"), ("nowhere", None), ("", None)]
)
def test_the_address_of_this_machine_is_the_one_that_leads_to_the_others(endpoint, address):
    assert address_towards(endpoint) == address


@pytest.mark.parametrize(
    ("setting", "flag"),
    [
        ({"monitor_interval": "5"}, "--monitor_interval=5.0"),
        ({"rdzv_conf": "timeout=9,x=y"}, "--rdzv_conf=timeout=9,x=y,is_host=true"),
        ({"role": "trainer"}, "--role=trainer"),
        ({"tee": "1"}, "--tee=1"),
        ({"log_dir": "logs"}, "--log_dir=/srv/logs"),
        ({"rdzv_id": "mine"}, "--rdzv_id=mine"),
    ],
)
def test_settings_reach_the_agent(request_for, setting, flag):
    assert flag in flags_of(request_for, **TWO, **MEETING, **setting)


@pytest.mark.parametrize(("machine_rank", "port"), [("0", 29501), ("1", None)])
def test_the_port_belongs_to_the_first_machine(request_for, machine_rank, port):
    assert plan_of(request_for, **TWO, **MEETING, machine_rank=machine_rank).port == port


def test_each_machine_writes_a_separate_report(request_for):
    plan = plan_of(request_for, **TWO, **MEETING, machine_rank="1", report="r.json")
    assert str(plan.report) == "/srv/r.machine-1.json"


def test_machines_without_a_meeting_place_are_refused(request_for):
    with pytest.raises(ConfigError, match="need `--main_process_ip`"):
        plan_of(request_for, **TWO)


def test_jobs_that_share_one_meeting_place_have_separate_names(request_for):
    def job(*command, **environ):
        flags = {"use_cpu": "true", "num_processes": "2", "num_machines": "2", "master_addr": "etcd"}
        request = request_for(*command, flags=flags | {"rdzv_backend": "etcd-v2"}, environ=environ)
        (found,) = [word for word in ElasticLauncher().plan(request).processes[0].argv if "--rdzv_id" in word]
        return found

    assert job("train.py") == job("train.py") != job("train.py", "--lr", "1")
    assert job("train.py", SLURM_JOB_ID="77") == "--rdzv_id=accel-77"
