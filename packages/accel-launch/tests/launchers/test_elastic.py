from __future__ import annotations

import pytest

from accel_launch.launchers.elastic import ElasticLauncher
from accel_state.errors import ConfigError

AGENT = ("python", "-P", "-m", "accel_launch.elastic_agent")
TWO = {"num_machines": "2", "num_processes": "4", "rdzv_backend": "c10d"}
MEETING = {"master_addr": "10.0.0.1", "master_port": "29501"}


def agent_of(request_for, **flags):
    plan = ElasticLauncher().plan(request_for("train.py", "--", "-h", flags=flags))
    (process,) = plan.processes
    assert process.argv[:4] == AGENT
    end = process.argv.index("--")
    assert process.argv[end + 1 :] == ("python", "-u", "train.py", "--", "-h")
    return plan, process, list(process.argv[4:end])


def test_takes_what_only_the_agent_can_do(request_for):
    accepts = ElasticLauncher().accepts
    for flags in ({"max_restarts": "2"}, {"tee": "3"}, {"log_dir": "x"}, {"role": "r"}, TWO):
        assert accepts(request_for(flags=flags))
    assert not accepts(request_for(flags={"num_processes": "2"}))
    assert not accepts(request_for(flags=TWO | {"rdzv_backend": "static"}))


def test_on_one_machine_the_agent_finds_a_port(request_for):
    plan, agent, flags = agent_of(request_for, num_processes="2", max_restarts="3")
    assert flags == [
        "--nproc-per-node=2",
        "--nnodes=1",
        "--standalone",
        "--max-restarts=3",
        "--shutdown-timeout=30",
    ]
    assert dict(agent.environ) == {"OMP_NUM_THREADS": "4", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    assert (plan.num_ranks, plan.port) == (2, None)


@pytest.mark.parametrize(
    ("setting", "flag"),
    [
        ({"max_restarts": "3"}, "--max-restarts=3"),
        ({"monitor_interval": "5"}, "--monitor-interval=5.0"),
        ({"rdzv_conf": "timeout=9,x=y"}, "--rdzv-conf=timeout=9,x=y"),
        ({"role": "trainer"}, "--role=trainer"),
        ({"tee": "0:3,1:1"}, "--tee=0:3,1:1"),
        ({"log_dir": "logs"}, "--log-dir=logs"),
        ({"grace_period_s": "2.5"}, "--shutdown-timeout=3"),
        ({"report": "r.json"}, "--report=/srv/r.json"),
        ({"debug_mode": "true"}, "--verbose"),
    ],
)
def test_settings_reach_the_agent(request_for, setting, flag):
    assert flag in agent_of(request_for, **setting)[2]


def test_c10d_meets_at_an_endpoint(request_for):
    _, _, flags = agent_of(request_for, **TWO, **MEETING)
    assert flags[:2] == ["--nproc-per-node=2", "--nnodes=2"]
    assert flags[2:5] == ["--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.1:29501", "--rdzv-id=accel"]
    assert flags[5] == "--rdzv-conf=is_host=true"


def test_c10d_hosts_the_meeting_on_the_first_machine_unless_told_otherwise(request_for):
    given = TWO | MEETING | {"machine_rank": "1"}
    assert "--rdzv-conf=timeout=9,is_host=false" in agent_of(request_for, **given, rdzv_conf="timeout=9")[2]
    assert "--rdzv-conf=is_host=1" in agent_of(request_for, **given, rdzv_conf="is_host=1")[2]


@pytest.mark.parametrize(("rank", "port"), [("0", 29501), ("1", None)])
def test_static_ranks_of_machines_with_restarts(request_for, rank, port):
    given = TWO | MEETING | {"rdzv_backend": "static", "max_restarts": "1", "machine_rank": rank}
    plan, _, flags = agent_of(request_for, **given)
    assert flags[2:6] == [
        "--rdzv-backend=static",
        f"--node-rank={rank}",
        "--master-addr=10.0.0.1",
        "--master-port=29501",
    ]
    assert plan.port == port


def test_the_agent_of_another_machine_writes_a_report_of_its_own(request_for):
    plan, _, flags = agent_of(request_for, **TWO, **MEETING, machine_rank="1", report="r.json")
    assert "--report=/srv/r.machine-1.json" in flags
    assert str(plan.report) == "/srv/r.machine-1.json"


def test_machines_without_a_meeting_place_are_refused(request_for):
    with pytest.raises(ConfigError, match="need `--main_process_ip`"):
        agent_of(request_for, **TWO)


def test_jobs_that_share_one_meeting_place_have_names_of_their_own(request_for):
    def job(*command, **environ):
        flags = {"use_cpu": "true", "num_processes": "2", "num_machines": "2", "master_addr": "etcd"}
        request = request_for(*command, flags=flags | {"rdzv_backend": "etcd-v2"}, environ=environ)
        (found,) = [word for word in ElasticLauncher().plan(request).processes[0].argv if "--rdzv-id" in word]
        return found

    assert job("train.py") == job("train.py") != job("train.py", "--lr", "1")
    assert job("train.py", SLURM_JOB_ID="77") == "--rdzv-id=accel-77"
