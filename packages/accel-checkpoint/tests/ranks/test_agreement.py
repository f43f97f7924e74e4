import threading

import pytest
from torch.distributed import HashStore, TCPStore

from accel_checkpoint.ranks import agreement as module
from accel_checkpoint.ranks.agreement import Agreement, StoreAgreement
from accel_checkpoint.ranks.heartbeat import Heartbeat
from accel_state.errors import CheckpointError


def agreement(store, rank=0, *, world_size=2, deadline_s=20, silence_s=20):
    heartbeat = Heartbeat(store, rank=rank, beat_s=0.02, silence_s=silence_s)
    return StoreAgreement(store, rank=rank, world_size=world_size, deadline_s=deadline_s, presence=heartbeat)


def joined(reports):
    return "+".join(reports)


def agree_in_thread(one, topic, report):
    """Return a thread, and the list in which its verdict or error will be."""
    outcome = []

    def run():
        try:
            outcome.append(one.agree(topic, report, joined))
        except CheckpointError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def test_every_rank_gets_the_verdict_that_rank_0_makes_of_all_reports():
    store = HashStore()
    ranks = [agree_in_thread(agreement(store, n, world_size=3), "topic", f"of {n}") for n in range(3)]
    [thread.join() for thread, _ in ranks]
    assert [outcome for _, outcome in ranks] == [["of 0+of 1+of 2"]] * 3


class AllPresent:
    num_bytes = 0

    def ended(self, ranks):
        return []


def test_only_rank_0_reads_the_reports():
    class Counting:
        def __init__(self, store):
            self.store, self.num_requests, self.read = store, 0, set()

        def __getattr__(self, name):
            if name not in ("check", "has_extended_api"):
                self.num_requests += 1
            return getattr(self.store, name)

        def get(self, key):
            self.num_requests += 1
            self.read.add(key)
            return self.store.get(key)

        def multi_get(self, keys):
            self.num_requests += 1
            self.read.update(keys)
            return self.store.multi_get(keys)

    inner, num_requests = HashStore(), {}
    for world_size in (2, 8):
        stores = [Counting(inner) for _ in range(world_size)]
        members = [
            StoreAgreement(stores[n], rank=n, world_size=world_size, deadline_s=20, presence=AllPresent())
            for n in range(world_size)
        ]
        ranks = [agree_in_thread(one, f"of {world_size}", "") for one in members]
        [thread.join() for thread, _ in ranks]
        num_requests[world_size] = stores[1].num_requests
        topic = f"of {world_size}"
        assert stores[0].read == {f"{topic}/report/{rank}" for rank in range(1, world_size)}
        assert [store.read for store in stores[1:]] == [{f"{topic}/verdict/0"}] * (world_size - 1)
    assert abs(num_requests[8] - num_requests[2]) <= 2  # the last to come, and the last to leave, say so


def test_rank_0_does_not_look_for_single_reports_while_it_waits(monkeypatch):
    class Recording:
        def __init__(self):
            self.store, self.checked = HashStore(), []

        def __getattr__(self, name):
            return getattr(self.store, name)

        def check(self, keys):
            self.checked.append(keys)
            return self.store.check(keys)

    class ReportingThenEnded:
        has_reported, num_bytes = False, 0

        def ended(self, ranks):
            if self.has_reported:
                return list(ranks)
            self.has_reported = True
            for rank in ranks:
                store.set(f"topic/report/{rank}", f"of {rank}")
            return []

    monkeypatch.setattr(module, "_LIVENESS_CHECK_S", 0.001)
    store = Recording()
    one = StoreAgreement(store, rank=0, world_size=4, deadline_s=20, presence=ReportingThenEnded())
    assert one.agree("topic", "of 0", joined) == "of 0+of 1+of 2+of 3"
    assert {len(keys) for keys in store.checked if keys != ["topic/read"]} == {3}


def test_missing_ranks_are_named_after_the_deadline():
    alone = agreement(HashStore(), world_size=3, deadline_s=0.05)
    with pytest.raises(CheckpointError, match=r"Rank 1, 2 did not reach `written` within 0.05 s"):
        alone.agree("written", "here", joined)


class Working:
    """Every rank that is asked about has written another byte."""

    num_bytes = 0

    def ended(self, ranks):
        self.num_bytes += 1
        return []


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", ["begun", "progress"])
def test_a_rank_at_work_is_waited_for_beyond_the_deadline(monkeypatch, caplog, rank, kind):
    monkeypatch.setattr(module, "_LIVENESS_CHECK_S", 0.005)
    monkeypatch.setattr(module, "_LONGEST_WAIT_S", 0.005)
    monkeypatch.setattr(module, "_GRACE_S", 0.0)
    store, is_begun = HashStore(), kind == "begun"
    presence = AllPresent() if is_begun else Working()
    waiting, outcome = in_thread(
        StoreAgreement(store, rank=rank, world_size=2, deadline_s=0.2, presence=presence), is_begun=is_begun
    )
    waiting.join(timeout=0.5)
    assert waiting.is_alive()
    other, _ = agree_in_thread(agreement(store, 1 - rank), "written", f"of {1 - rank}")
    waiting.join(timeout=20)
    other.join(timeout=20)
    assert outcome == ["of 0+of 1"]
    assert f"Rank {rank} is waiting for rank {1 - rank}, which is alive" in caplog.text


@pytest.mark.parametrize("kind", ["begun", "progress"])
def test_a_rank_that_has_stopped_working_is_named(monkeypatch, kind):
    monkeypatch.setattr(module, "_LIVENESS_CHECK_S", 0.005)
    monkeypatch.setattr(module, "_LONGEST_WAIT_S", 0.005)
    monkeypatch.setattr(module, "STALLED_S", 0.05)

    class Stopping(Working):
        def ended(self, ranks):
            self.num_bytes = min(self.num_bytes + 1, 5)
            return []

    presence = AllPresent() if kind == "begun" else Stopping()
    alone = StoreAgreement(HashStore(), rank=0, world_size=2, deadline_s=0.01, presence=presence)
    with pytest.raises(CheckpointError, match="Rank 1 did not reach `written` within"):
        alone.agree("written", "of 0", joined, is_begun=kind == "begun")


def in_thread(one, **options):
    """Return a thread that agrees on `written`, and the list in which its verdict or error will be."""
    outcome = []

    def run():
        try:
            outcome.append(one.agree("written", f"of {one.rank}", joined, **options))
        except CheckpointError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def test_every_waiting_rank_learns_which_rank_is_missing():
    store = HashStore()
    second, outcome = agree_in_thread(agreement(store, 1, world_size=3, deadline_s=0.05), "written", "here")
    with pytest.raises(CheckpointError, match="Rank 2 did not reach"):
        agreement(store, 0, world_size=3, deadline_s=0.05).agree("written", "here", joined)
    second.join()
    assert "Rank 2 did not reach `written`" in str(outcome[0])


def test_rank_0_is_named_if_it_is_missing(monkeypatch):
    monkeypatch.setattr(module, "_GRACE_S", 0.0)
    store = HashStore()
    with pytest.raises(CheckpointError, match=r"Rank 0 did not reach `written` within 0.05 s"):
        agreement(store, 1, deadline_s=0.05).agree("written", "here", joined)


def test_rank_0_leaves_when_the_others_have_read_the_verdict():
    store = HashStore()
    keeper, outcome = agree_in_thread(agreement(store, 0), "committed", "of 0")
    second = agreement(store, 1)
    store.set("committed/report/1", "of 1")
    keeper.join(timeout=0.1)
    assert keeper.is_alive()
    assert second.agree("committed", "of 1", joined) == "of 0+of 1"
    keeper.join(timeout=20)
    assert outcome == ["of 0+of 1"]


def test_no_rank_waits_for_one_that_has_ended(distant_ranks):
    store = distant_ranks
    others = [agreement(store, rank, world_size=3, silence_s=0.1) for rank in (1, 2)]
    del others[0]
    waiting = agreement(store, world_size=3, silence_s=0.1)
    with pytest.raises(CheckpointError, match="Rank 1 has ended before it reached `written`"):
        waiting.agree("written", "here", joined)


def test_no_rank_waits_for_rank_0_if_it_has_ended(distant_ranks):
    store = distant_ranks
    waiting, keeper = agreement(store, 1, silence_s=0.1), agreement(store, 0)
    del keeper
    with pytest.raises(CheckpointError, match="Rank 0 has ended before it reached `written`"):
        waiting.agree("written", "here", joined)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("of merging")])
def test_the_other_ranks_learn_that_rank_0_has_stopped_waiting(error):
    def merge(reports):
        raise error

    store = HashStore()
    second, outcome = agree_in_thread(agreement(store, 1), "written", "here")
    with pytest.raises(type(error)):
        agreement(store, 0).agree("written", "here", merge)
    second.join()
    assert f"Rank 0 has stopped waiting for the other ranks: {type(error).__name__}" in str(outcome[0])


def test_the_ranks_can_agree_again_after_a_failed_round():
    store = HashStore()
    first, second = agreement(store, 0, deadline_s=0.05), agreement(store, 1)
    with pytest.raises(CheckpointError):
        first.agree("one", "", joined)
    with pytest.raises(CheckpointError, match="Rank 1 did not reach `one`"):
        second.agree("one", "late", joined)
    first.deadline_s = 20
    late, outcome = agree_in_thread(first, "other", "of 0")
    assert second.agree("other", "of 1", joined) == "of 0+of 1"
    late.join()
    assert outcome == ["of 0+of 1"]


def test_nothing_of_a_round_stays_in_the_store():
    store = HashStore()
    first, second = agreement(store, 0), agreement(store, 1)
    num_keys = store.num_keys()
    thread, _ = agree_in_thread(second, "topic", "note")
    first.agree("topic", "note", joined)
    thread.join()
    assert store.num_keys() == num_keys


def test_a_lost_store_is_reported():
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, is_master=False)
    one = agreement(client, rank=1)
    del server
    with pytest.raises(CheckpointError, match="store of the process group does not answer.*Rank 0, or"):
        one.agree("written", "here", joined)


def test_one_process_agrees_with_itself():
    assert Agreement().agree("topic", "note", joined) == "note"
