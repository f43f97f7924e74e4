from __future__ import annotations

import pytest

from accel_state.errors import ConfigError
from accel_state.launched_by.slurm import SLURMEnvironment, expand_counts, first_host

TASK = {
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "1",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NODELIST": "gpu[07,09-10]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
}
detect, topology = SLURMEnvironment().detect, SLURMEnvironment().topology


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"SLURM_STEP_ID": "", "SLURM_STEPID": "0"}, True),
        ({"SLURM_STEP_ID": ""}, False),
        ({"SLURM_STEP_ID": "4294967291"}, False),
        ({"SLURM_STEP_ID": "4294967294"}, False),
        ({"SLURM_PROCID": ""}, False),
        # srun --ntasks-per-node=4 --pty bash, then `python script.py`
        ({"SLURM_STEP_ID": "0", "SLURM_JOB_NAME": "bash", "SLURM_PTY_PORT": "40123"}, False),
        # … then `srun python script.py`
        ({"SLURM_STEP_ID": "1", "SLURM_JOB_NAME": "bash", "SLURM_PTY_PORT": "40123"}, True),
        # srun --pty python script.py
        ({"SLURM_STEP_ID": "0", "SLURM_JOB_NAME": "python", "SLURM_PTY_PORT": "40123"}, True),
        # salloc, then `srun python script.py`; or srun bash -c "python script.py"
        ({"SLURM_STEP_ID": "0", "SLURM_JOB_NAME": "interactive"}, True),
        ({"SLURM_STEP_ID": "0", "SLURM_JOB_NAME": "bash"}, True),
    ],
)
def test_only_the_tasks_of_a_real_step_count(changes, expected):
    assert detect(TASK | changes) is expected


def test_unequal_nodes_have_their_own_local_sizes():
    assert topology(TASK).local_world_size == 1
    first = topology(TASK | {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0"})
    assert (first.local_world_size, first.node_rank, first.num_nodes) == (2, 0, 3)


def test_the_ranks_meet_on_the_first_host_of_the_list():
    assert topology(TASK).master_addr == "gpu07"


def test_the_step_wins_over_the_larger_job():
    job = {
        "SLURM_NTASKS": "64",
        "SLURM_NNODES": "8",
        "SLURM_JOB_NODELIST": "a[1-8]",
        "SLURM_TASKS_PER_NODE": "8(x8)",
    }
    assert topology(TASK | job) == topology(TASK)


def test_the_job_fills_in_for_what_the_step_does_not_specify():
    found = topology(
        {
            "SLURM_STEPID": "0",
            "SLURM_NTASKS": "4",
            "SLURM_NNODES": "2",
            "SLURM_JOB_NODELIST": "a1,b1",
            "SLURM_PROCID": "2",
            "SLURM_LOCALID": "0",
            "SLURM_NODEID": "1",
        }
    )
    assert (found.world_size, found.local_world_size, found.node_rank, found.master_addr) == (4, 2, 1, "a1")


def test_the_jobs_list_of_tasks_is_not_taken_for_that_of_a_smaller_step():
    """srun --ntasks=2 in a job of 8 tasks, where the step is silent about its tasks per node."""
    step = {name: value for name, value in TASK.items() if name != "SLURM_STEP_TASKS_PER_NODE"}
    found = topology(
        step
        | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2", "SLURM_TASKS_PER_NODE": "8"}
        | {"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "1"}
    )
    assert (found.world_size, found.local_world_size, found.node_rank) == (2, 1, 1)


def test_one_node_meets_on_loopback():
    one = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}
    assert topology(one).master_addr == "127.0.0.1"


def test_jobs_and_steps_meet_on_different_ports_and_all_ranks_on_the_same():
    def port(**changes: str) -> int | None:
        return topology(TASK | changes).master_port

    assert port() == port(SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="0")
    assert len({port(), port(SLURM_JOB_ID="13"), port(SLURM_STEP_ID="2")}) == 3
    assert 15000 <= port(SLURM_JOB_ID="4000000000") < 32768


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"WORLD_SIZE": "6"}, "`WORLD_SIZE` is `6`, but `SLURM_STEP_NUM_TASKS` is `5`"),
        ({"SLURM_NODEID": "3"}, "`SLURM_NODEID` is `3`.*because `SLURM_STEP_NUM_NODES` is `3`"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2,2"}, "`SLURM_STEP_TASKS_PER_NODE` is `2,2`, which has no node 2"),
        (
            {"SLURM_STEP_TASKS_PER_NODE": "many"},
            r"`SLURM_STEP_TASKS_PER_NODE` is `many`.*look like `2\(x3\),1`",
        ),
        ({"SLURM_STEP_NODELIST": "n[1-"}, "`SLURM_STEP_NODELIST` is `n.1-`, but it must be a list of hosts"),
        ({"SLURM_LOCALID": "1"}, "`SLURM_LOCALID` is `1`.*because `SLURM_STEP_TASKS_PER_NODE`"),
    ],
)
def test_contradicting_values_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        topology(TASK | changes)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[1-3]", "n1"),
        ("n[01-03,7],gpu5", "n01"),
        ("gpu5,n[01-03,7]", "gpu5"),
        ("n[1-2]-ib,login.cluster.org", "n1-ib"),
        ("rack[1-2]n[3-4]", "rack1n3"),
        (" a , b ", "a"),
        ("n[0000000000-9999999999]", "n0000000000"),
    ],
)
def test_the_first_host_of_a_list(text, host):
    assert first_host(text, variable="V") == host


@pytest.mark.parametrize(
    "text", ["", ",", "a,,b", "n[1-", "n1-3]", "n[a-b]", "n[]", "n[1,]", "n[[1]]", "a,n[1-"]
)
def test_text_that_is_no_list_of_hosts_is_refused_with_the_variable(text):
    with pytest.raises(ConfigError, match="`SOME_LIST` is `.*`, but it must be a list of hosts"):
        first_host(text, variable="SOME_LIST")


@pytest.mark.parametrize(
    ("text", "counts"), [("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("1,8(x2)", [1, 8, 8]), (" 2 , 3 ", [2, 3])]
)
def test_counts_are_written_out_per_node(text, counts):
    assert expand_counts(text, variable="V") == counts


@pytest.mark.parametrize("text", ["", "a", "2(x", "2x3", "2(3)", "1,,2", "-1"])
def test_text_that_is_no_list_of_counts_is_refused_with_the_variable(text):
    with pytest.raises(ConfigError, match=r"`SOME_COUNTS` is `.*`, but it must look like `2\(x3\),1`"):
        expand_counts(text, variable="SOME_COUNTS")
