from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousParameters,
    RendezvousTimeoutError,
)

from accel_launch.launchers.local import free_port
from accel_launch.static_rendezvous import BACKEND, StaticRendezvous


class Machines:
    """Machines of one run, in threads of this process."""

    def __init__(self, num_machines: int) -> None:
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.num_machines = num_machines

    def start(self, rank: int, **conf: object) -> StaticRendezvous:
        conf = {"timeout": "60", "rank": str(rank), **conf}
        number = self.num_machines
        return StaticRendezvous(
            RendezvousParameters(BACKEND, self.endpoint, "accel", number, number, "127.0.0.1", **conf)
        )


def met(machines):
    """Return the places that the machines, all at once, get from the next round."""
    with ThreadPoolExecutor() as pool:
        return [each.result() for each in [pool.submit(machine.next_rendezvous) for machine in machines]]


def test_machines_keep_their_ranks_and_meet_at_the_first():
    run = Machines(3)
    infos = met([run.start(rank) for rank in range(3)])
    assert [(info.rank, info.world_size) for info in infos] == [(0, 3), (1, 3), (2, 3)]
    assert len({info.bootstrap_store_info.master_port for info in infos}) == 1
    assert infos[2].bootstrap_store_info.master_addr == "127.0.0.1"


def test_a_machine_that_starts_again_calls_the_others_to_a_new_store():
    run = Machines(2)
    machines = [run.start(rank) for rank in range(2)]
    first = met(machines)
    with ThreadPoolExecutor() as pool:
        again = pool.submit(machines[1].next_rendezvous)
        while not machines[0].num_nodes_waiting():
            pass
        second = [machines[0].next_rendezvous(), again.result()]
    first[0].store.set("key", "of the attempt before")
    assert not second[1].store.check(["key"])


def test_a_second_launch_of_a_machine_takes_the_place_of_the_first():
    run = Machines(2)
    machines = [run.start(rank) for rank in range(2)]
    met(machines)
    with ThreadPoolExecutor() as pool:
        second = pool.submit(run.start(1).next_rendezvous)
        while not machines[0].num_nodes_waiting():
            pass
        machines[0].next_rendezvous()
        assert second.result().rank == 1
    with pytest.raises(
        ValueError, match="another launch has `--machine_rank 1`, too. Give each machine its own."
    ):
        machines[1].next_rendezvous()


def test_a_machine_that_meets_no_other_names_the_one_that_is_missing():
    machine = Machines(2).start(0, timeout="1")
    with pytest.raises(
        RendezvousTimeoutError, match="no launch with `--machine_rank 1` joined within 1 s. Start one"
    ):
        machine.next_rendezvous()


def test_a_setting_of_another_backend_is_refused():
    with pytest.raises(
        ValueError, match="`--rdzv_conf` has `last_call_timeout`, but `static` knows `timeout` only."
    ):
        Machines(2).start(0, last_call_timeout="1")


def test_the_end_of_the_run_on_one_machine_ends_the_wait_of_another():
    run = Machines(2)
    machines = [run.start(rank) for rank in range(2)]
    met(machines)
    machines[0].shutdown()
    with pytest.raises(RendezvousClosedError):
        machines[1].next_rendezvous()
