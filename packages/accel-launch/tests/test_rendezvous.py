from __future__ import annotations

import json
import os

import pytest

from accel_launch.launchers.ports import free_port
from accel_launch.rendezvous import address_towards, machine_of, meeting_of
from accel_state.environment import snapshot
from tools.harness.fork_server import fork_server


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


WORD = machine(0) | {"address": "10.0.0.1"}


def test_a_machine_identifies_itself_in_plain_values():
    assert machine_of("accel/machine/0", json.dumps(WORD).encode()) == WORD


@pytest.mark.parametrize(
    "value",
    [
        b"gASVIQAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAZ0b3VjaCBYlIWUUpQu",
        b"\xff\xfe",
        b"[" * 4000,
        b"[]",
        json.dumps(WORD | {"address": "a" * 5000}).encode(),
        json.dumps(WORD | {"address": "10.0.0.1\0"}).encode(),
        json.dumps(WORD | {"port": "29500"}).encode(),
        json.dumps(WORD | {"restarts": -1}).encode(),
        json.dumps(WORD | {"num_processes": 0}).encode(),
    ],
)
def test_a_value_that_no_machine_writes_is_refused_by_the_name_of_its_key(value):
    with pytest.raises(
        ValueError, match=r"the key `accel/machine/1` has a value .* choose another `--main_pro"
    ):
        machine_of("accel/machine/1", value)


class Program:
    """The program of one machine, asked through its pipes; forked, since it imports torch."""

    def __init__(self, machine_rank: int, port: int, *flags: str, num_machines: int = 2) -> None:
        code = "import sys; from accel_launch.rendezvous import main; sys.exit(main())"
        place = (
            f"--endpoint=127.0.0.1:{port}",
            f"--machine-rank={machine_rank}",
            f"--num-machines={num_machines}",
        )
        argv = ("-c", code, "--id=accel", "--backend=static", "--num-processes=1", *place, *flags)
        (theirs_in, ours_in), (ours_out, theirs_out), (ours_err, theirs_err) = os.pipe(), os.pipe(), os.pipe()
        self.stdin, self.stdout, self.stderr = (
            os.fdopen(ours_in, "w"),
            os.fdopen(ours_out),
            os.fdopen(ours_err),
        )
        with os.fdopen(theirs_in) as stdin, os.fdopen(theirs_out) as out, os.fdopen(theirs_err) as err:
            self.process = fork_server().start(argv, environ=snapshot(), streams=(stdin, out, err))

    def ask(self, **question: object) -> None:
        self.stdin.write(json.dumps(question) + "\n")
        self.stdin.flush()

    def answer(self) -> dict[str, object]:
        return json.loads(self.stdout.readline())

    def ends(self) -> tuple[int, str]:
        """Return the exit code, and what it wrote to standard error."""
        return self.process.wait(timeout=60), self.stderr.read()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()


@pytest.fixture
def start():
    """Start the program of a machine, which requests a meeting."""
    port, started = free_port(), []

    def of_machine(machine_rank: int, *flags: str, num_machines: int = 2) -> Program:
        program = Program(machine_rank, port, *flags, num_machines=num_machines)
        started.append(program)
        program.ask(meet=0)
        return program

    yield of_machine
    for program in started:
        program.close()


@pytest.fixture
def programs(start):
    return [start(0), start(1)]


def test_a_machine_that_restarts_calls_the_others(start):
    programs = [start(rank, num_machines=3) for rank in range(3)]
    first = [program.answer()["meeting"] for program in programs]
    assert [meeting["first_rank"] for meeting in first] == [0, 1, 2]
    programs[1].ask(meet=1)
    for program in (programs[0], programs[2]):
        assert program.answer() == {"called": True}
        program.ask(meet=0)
    second = [program.answer()["meeting"] for program in programs]
    assert [meeting["restarts"] for meeting in second] == [1, 1, 1]
    for program in programs:
        program.ask(leave=False)
    assert [program.process.wait(timeout=60) for program in programs] == [0, 0, 0]


def test_a_second_launch_of_a_machine_takes_the_place_of_the_first(start, programs):
    for program in programs:
        program.answer()
    second = start(1)
    for program in programs:
        assert program.answer() == {"called": True}
        program.ask(meet=0)
    assert [program.answer()["meeting"]["group_rank"] for program in (programs[0], second)] == [0, 1]
    code, stderr = programs[1].ends()
    assert code == 1
    assert "another launch has `--machine_rank 1`, too. Give each machine its own." in stderr


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        (
            "timeout=1",
            "no launch with `--machine_rank 1` joined within 1 s. Start one on each machine, or raise",
        ),
        ("last_call_timeout=1", "`--rdzv_conf` has `last_call_timeout`, but `static` knows `timeout` only."),
    ],
)
def test_a_machine_that_meets_no_other_explains_why(start, conf, message):
    code, stderr = start(0, f"--conf={conf}").ends()
    assert code == 1
    assert stderr.startswith("error: The machines do not meet by `--rdzv_backend static` at `127.0.0.1:")
    assert message in stderr


@pytest.mark.parametrize("question", [{"leave": True}, {"meet": 1}])
def test_a_machine_that_has_succeeded_does_not_wait_for_one_that_has_not(programs, question):
    for program in programs:
        program.answer()
    programs[0].ask(leave=False)
    programs[1].ask(**question)
    assert programs[0].process.wait(timeout=60) == 0
    assert programs[1].process.wait(timeout=60) == ("meet" in question)
