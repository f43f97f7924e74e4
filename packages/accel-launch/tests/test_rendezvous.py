from __future__ import annotations

import json
import subprocess
import sys

import pytest

from accel_launch.launchers.ports import free_port
from accel_launch.rendezvous import address_towards, meeting_of


def machine(machine_rank: int, num_processes: int = 2, restarts: int = 0) -> dict[str, object]:
    place = {"address": f"10.0.0.{machine_rank}", "port": 29500 + machine_rank}
    return {"machine_rank": machine_rank, "num_processes": num_processes, "restarts": restarts} | place


def test_ranks_come_in_the_order_of_the_machines_and_all_meet_at_the_first():
    machines = [machine(1, 3), machine(0, 2), machine(2, 1)]
    meetings = [meeting_of(machines, own) for own in range(3)]
    assert [meeting["group_rank"] for meeting in meetings] == [1, 0, 2]
    assert [meeting["first_rank"] for meeting in meetings] == [2, 0, 5]
    for meeting in meetings:
        assert (meeting["world_size"], meeting["group_world_size"]) == (6, 3)
        assert (meeting["address"], meeting["port"]) == ("10.0.0.0", 29500)


def test_machines_of_the_same_number_come_in_the_order_of_the_rendezvous():
    machines = [machine(0) | {"address": "a"}, machine(0) | {"address": "b"}]
    assert [meeting_of(machines, own)["group_rank"] for own in range(2)] == [0, 1]


def test_all_machines_count_the_same_restarts():
    assert meeting_of([machine(0), machine(1, restarts=2)], 0)["restarts"] == 2


@pytest.mark.parametrize(
    ("endpoint", "address"), [("127.0.0.1:29500", "127.0.0.1"), ("nowhere", None), ("", None)]
)
def test_the_own_address_is_the_one_that_leads_to_the_others(endpoint, address):
    assert address_towards(endpoint) == address


class Program:
    """The program of one machine, asked through its pipes."""

    def __init__(self, machine_rank: int, port: int, *flags: str) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "accel_launch.rendezvous", "--id=accel", "--backend=static"),
                f"--endpoint=127.0.0.1:{port}",
                *("--num-machines=2", f"--machine-rank={machine_rank}", "--num-processes=1", *flags),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **question: object) -> None:
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, object]:
        return json.loads(self.process.stdout.readline())


@pytest.fixture
def programs():
    port = free_port()
    started = [Program(0, port), Program(1, port)]
    for program in started:
        program.ask(meet=0)
    yield started
    for program in started:
        program.process.kill()
        program.process.communicate()


@pytest.mark.slow
def test_a_machine_that_starts_anew_calls_the_other(programs):
    first = [program.answer()["meeting"] for program in programs]
    assert [meeting["first_rank"] for meeting in first] == [0, 1]
    programs[1].ask(meet=1)
    assert programs[0].answer() == {"called": True}
    programs[0].ask(meet=0)
    second = [program.answer()["meeting"] for program in programs]
    assert [meeting["restarts"] for meeting in second] == [1, 1]
    for program in programs:
        program.ask(leave=False)
    assert [program.process.wait(timeout=60) for program in programs] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("question", [{"leave": True}, {"meet": 1}])
def test_a_machine_that_has_succeeded_does_not_wait_for_one_that_has_not(programs, question):
    for program in programs:
        program.answer()
    programs[0].ask(leave=False)
    programs[1].ask(**question)
    assert programs[0].process.wait(timeout=60) == 0
    assert programs[1].process.wait(timeout=60) == ("meet" in question)
