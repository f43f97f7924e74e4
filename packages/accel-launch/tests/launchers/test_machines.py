from __future__ import annotations

import pytest

from accel_launch.launchers.machines import MachinesLauncher
from accel_state.errors import ConfigError

TWO = {"num_machines": "2", "num_processes": "4", "master_addr": "10.0.0.1"}


def test_takes_several_machines_that_meet_at_a_fixed_place(request_for):
    accepts = MachinesLauncher().accepts
    assert accepts(request_for(flags=TWO))
    assert not accepts(request_for(flags={"num_processes": "4"}))
    assert not accepts(request_for(flags=TWO | {"rdzv_backend": "c10d"}))
    assert not accepts(request_for(flags=TWO | {"max_restarts": "1"}))


@pytest.mark.parametrize(("machine_rank", "ranks"), [("0", [0, 1]), ("1", [2, 3])])
def test_each_machine_starts_its_share_of_the_ranks(request_for, machine_rank, ranks):
    plan = MachinesLauncher().plan(request_for(flags=TWO | {"machine_rank": machine_rank}))
    assert (plan.num_ranks, plan.port) == (4, 29500)
    assert [process.rank for process in plan.processes] == ranks
    for local_rank, process in enumerate(plan.processes):
        seen = {
            name: process.environ[name]
            for name in (
                "RANK",
                "WORLD_SIZE",
                "LOCAL_RANK",
                "LOCAL_WORLD_SIZE",
                "GROUP_RANK",
                "GROUP_WORLD_SIZE",
            )
        }
        assert list(seen.values()) == [str(ranks[local_rank]), "4", str(local_rank), "2", machine_rank, "2"]
        assert (process.environ["MASTER_ADDR"], process.environ["MASTER_PORT"]) == ("10.0.0.1", "29500")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"master_addr": ""}, "need `--main_process_ip`"),
        ({"master_port": "0"}, "must agree on it"),
    ],
)
def test_what_machines_cannot_agree_on_is_refused(request_for, flags, message):
    given = {name: value for name, value in (TWO | flags).items() if value}
    with pytest.raises(ConfigError, match=message):
        MachinesLauncher().plan(request_for(flags=given))


@pytest.mark.parametrize(
    ("machine_rank", "given", "file"),
    [
        ("0", "out/r.json", "/srv/out/r.json"),
        ("1", "out/r.json", "/srv/out/r.machine-1.json"),
        ("12", "/tmp/r", "/tmp/r.machine-12"),
    ],
)
def test_machines_that_share_a_folder_do_not_overwrite_the_reports_of_others(
    request_for, machine_rank, given, file
):
    flags = {"num_machines": "13", "num_processes": "13", "master_addr": "10.0.0.1"}
    flags |= {"machine_rank": machine_rank, "report": given}
    assert str(MachinesLauncher().plan(request_for(flags=flags)).report) == file
