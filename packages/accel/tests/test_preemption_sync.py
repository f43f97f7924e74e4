import threading
import time

import pytest
import torch.distributed as dist

from accel import preemption
from accel.preemption import PreemptionSync
from accel_state.errors import StateError
from tools.harness.scripts import run_script


@pytest.fixture
def agreements(monkeypatch):
    """Makes agreements for ranks that share a store, and closes them."""
    monkeypatch.setattr(preemption, "POLL_S", 0.01)
    made = []

    def make(world_size, *, store=None, ranks=None):
        store = store or dist.HashStore()
        for rank in range(world_size) if ranks is None else ranks:
            made.append(
                PreemptionSync(
                    store if world_size > 1 else None,
                    rank=rank,
                    world_size=world_size,
                    grace_period_s=None,
                    exit_code=75,
                )
            )
        return list(made)

    yield make
    for one in made:
        one.close()


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def stops_at(agreement, *, limit=100):
    """Advance until the agreement says stop, and return the step."""
    for step in range(1, limit):
        agreement.advance()
        if agreement.is_agreed:
            return step
    return None


def test_a_single_process_stops_after_the_current_step(agreements):
    (alone,) = agreements(1)
    assert stops_at(alone, limit=5) is None
    alone.ask()
    assert not alone.is_agreed
    alone.advance()
    assert alone.is_agreed


def test_ranks_that_are_steps_apart_stop_at_the_same_step(agreements):
    ahead, behind = agreements(2)
    for _ in range(7):
        ahead.advance()
    for _ in range(2):
        behind.advance()
    behind.ask()
    wait_until(lambda: ahead._is_pending and behind._is_pending)
    results = {}
    threads = [
        threading.Thread(target=lambda one=one: results.update({one: stops_at(one)}))
        for one in (ahead, behind)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert (results[ahead] + 7, results[behind] + 2) == (8, 8)


@pytest.mark.parametrize("asking", [[0], [2], [0, 1, 2]])
def test_all_ranks_stop_together_whichever_gets_the_signal(agreements, asking):
    ranks = agreements(3)
    in_step = threading.Barrier(3)
    stopped = {}

    def loop(rank, agreement):
        for step in range(1, 100_000):
            in_step.wait(timeout=20)  # the collective of a training step
            if step == 20 and rank in asking:
                agreement.ask()
            agreement.advance()
            if agreement.is_agreed:
                stopped[rank] = step
                return

    threads = [threading.Thread(target=loop, args=pair) for pair in enumerate(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(set(stopped.values())) == 1
    assert sorted(stopped) == [0, 1, 2]
    assert stopped[0] >= 20


def test_a_rank_that_does_not_answer_is_named(agreements, monkeypatch):
    monkeypatch.setattr(preemption, "AGREEMENT_TIMEOUT_S", 0.05)
    (alone_of_two,) = agreements(2, ranks=[0])
    alone_of_two.ask()
    wait_until(lambda: alone_of_two._is_pending)
    with pytest.raises(StateError, match="rank 1 has not answered within 0.05 s"):
        stops_at(alone_of_two)
    assert not alone_of_two.is_possible


def test_no_rank_uses_the_store_after_rank_0_has_left(agreements):
    keeper, other = agreements(2)
    keeper.close()
    other._thread.join(timeout=20)
    assert not other._thread.is_alive()
    assert not other.is_possible
    other.advance()
    assert not other.is_agreed


class LostStore(dist.HashStore):
    """A store whose server is gone."""

    def check(self, keys):
        raise dist.DistNetworkError("connection reset")


def test_a_lost_store_is_detected_and_reported(agreements):
    (rank, _) = agreements(2, store=LostStore())
    wait_until(lambda: not rank.is_possible)
    rank.advance()
    assert not rank.is_agreed


def test_a_rank_that_does_not_leave_in_time_is_killed_with_the_exit_code():
    code = """
import time
from accel.preemption import PreemptionSync
agreement = PreemptionSync(None, rank=4, world_size=1, grace_period_s=0.2, exit_code=99)
agreement.ask()
time.sleep(60)
"""
    done = run_script("-c", code)
    assert done.returncode == 99
    assert "rank 4 has not left within the grace period of 0.2 s" in done.stderr


def test_closing_cancels_the_deadline():
    code = """
import time
from accel.preemption import PreemptionSync
agreement = PreemptionSync(None, rank=0, world_size=1, grace_period_s=1.0, exit_code=99)
agreement.ask()
agreement.advance()
agreement.close()
agreement._thread.join(timeout=5)
print("still here", agreement._thread.is_alive())
"""
    done = run_script("-c", code)
    assert (done.returncode, done.stdout) == (0, "still here False\n")


def test_a_rank_that_has_ended_its_training_does_not_keep_the_others_waiting(agreements):
    asked, ended = agreements(2)
    asked.advance()
    ended.close()
    asked.ask()
    wait_until(lambda: asked._is_pending)
    assert stops_at(asked) == 1
