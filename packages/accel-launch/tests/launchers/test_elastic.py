from __future__ import annotations

import pytest

from accel_launch.launchers.elastic import ElasticLauncher
from accel_state.errors import ConfigError

PROGRAM = ("python", "-P", "-m", "accel_launch.rendezvous")
TWO = {"num_machines": "2", "num_processes": "4", "rdzv_backend": "c10d"}
MEETING = {"master_addr": "10.0.0.1", "master_port": "29501"}


def plan_of(request_for, **flags):
    return ElasticLauncher().plan(request_for("train.py", "--", "-h", flags=flags))


def flags_of(request_for, **flags):
    rendezvous = plan_of(request_for, **flags).rendezvous
    assert rendezvous.argv[:4] == PROGRAM
    return list(rendezvous.argv[4:])


def test_takes_machines_that_have_to_agree(request_for):
    accepts = ElasticLauncher().accepts
    assert accepts(request_for(flags=TWO))
    assert accepts(request_for(flags=TWO | {"rdzv_backend": "static", "max_restarts": "1"}))
    assert not accepts(request_for(flags=TWO | {"rdzv_backend": "static"}))
    assert not accepts(request_for(flags={"num_processes": "2", "max_restarts": "1"}))


def test_the_ranks_of_this_machine_are_its_own_processes_and_the_rendezvous_another(request_for):
    plan = plan_of(request_for, **TWO, **MEETING, machine_rank="1", max_restarts="3", role="trainer")
    assert [process.rank for process in plan.processes] == [2, 3]
    assert (plan.num_ranks, plan.max_restarts, plan.port) == (4, 3, None)
    for process in plan.processes:
        assert process.argv == ("python", "-u", "train.py", "--", "-h")
        told = {name.removeprefix("TORCHELASTIC_"): value for name, value in process.environ.items()}
        assert (told["RUN_ID"], told["MAX_RESTARTS"], told["RESTART_COUNT"]) == ("accel", "3", "0")
        assert (told["ROLE_NAME"], told["USE_AGENT_STORE"]) == ("trainer", "False")
    assert plan.rendezvous.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"


def test_the_program_gets_what_the_machines_must_know_of_each_other(request_for):
    assert flags_of(request_for, **TWO, **MEETING) == [
        "--backend=c10d",
        "--endpoint=10.0.0.1:29501",
        "--id=accel",
        "--num-machines=2",
        "--machine-rank=0",
        "--num-processes=2",
        "--monitor-interval=0.1",
    ]


@pytest.mark.parametrize(
    ("setting", "flag"),
    [
        ({"monitor_interval": "5"}, "--monitor-interval=5.0"),
        ({"rdzv_conf": "timeout=9,x=y"}, "--conf=timeout=9,x=y"),
        ({"debug_mode": "true"}, "--verbose"),
        ({"rdzv_id": "mine"}, "--id=mine"),
    ],
)
def test_settings_reach_the_program(request_for, setting, flag):
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
        (found,) = [word for word in ElasticLauncher().plan(request).rendezvous.argv if "--id" in word]
        return found

    assert job("train.py") == job("train.py") != job("train.py", "--lr", "1")
    assert job("train.py", SLURM_JOB_ID="77") == "--id=accel-77"
