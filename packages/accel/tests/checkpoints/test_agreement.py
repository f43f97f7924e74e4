import threading

import pytest
from torch.distributed import HashStore, TCPStore

from accel.checkpoints.agreement import Alone, StoreAgreement
from accel.checkpoints.liveness import Liveness
from accel.checkpoints.notes import Note, check_all_well
from accel_state.errors import CheckpointError


def agreement(store, rank=0, *, world_size=2, deadline_s=20, silence_s=20):
    liveness = Liveness(store, rank=rank, beat_s=0.02, silence_s=silence_s)
    return StoreAgreement(store, rank=rank, world_size=world_size, deadline_s=deadline_s, liveness=liveness)


def test_every_rank_gets_all_notes_in_order():
    store, results = HashStore(), {}

    def rank(number):
        results[number] = agreement(store, number, world_size=3).exchange("topic", f"of {number}")

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert results == {number: ["of 0", "of 1", "of 2"] for number in range(3)}


def test_who_does_not_come_is_named_after_the_deadline():
    alone = agreement(HashStore(), world_size=3, deadline_s=0.05)
    with pytest.raises(CheckpointError, match=r"Rank 1, 2 did not come to `written` within 0.05 s"):
        alone.exchange("written", "here")


def test_the_rank_that_keeps_the_store_leaves_when_the_others_have_read():
    store, left = HashStore(), []
    first, second = agreement(store, 0), agreement(store, 1)
    keeper = threading.Thread(target=lambda: left.append(first.exchange("committed", "of 0")))
    keeper.start()
    store.set("committed/1", "of 1")
    store.set("committed/all", "")
    keeper.join(timeout=0.1)
    assert keeper.is_alive()
    assert second.exchange("committed", "of 1") == ["of 0", "of 1"]
    keeper.join(timeout=20)
    assert left == [["of 0", "of 1"]]


def test_nobody_waits_for_a_rank_that_has_ended():
    store = HashStore()
    others = [agreement(store, rank, world_size=3, silence_s=0.1) for rank in (1, 2)]
    del others[0]
    waiting = agreement(store, world_size=3, silence_s=0.1)
    with pytest.raises(CheckpointError, match="Rank 1 has ended before it came to `written`"):
        waiting.exchange("written", "here")


def test_nobody_waits_for_a_rank_that_has_stopped_waiting():
    store = HashStore()
    first, second = agreement(store, 0, deadline_s=0.05), agreement(store, 1)
    with pytest.raises(CheckpointError, match="did not come"):
        first.exchange("written", "in time")
    assert second.exchange("written", "late") == ["in time", "late"]
    with pytest.raises(CheckpointError, match="Rank 0 has stopped waiting for the others: Rank 1 did not"):
        second.exchange("committed", "late")


def test_the_ranks_can_agree_again_after_they_did_not():
    store = HashStore()
    first, second = agreement(store, 0, deadline_s=0.05), agreement(store, 1)
    with pytest.raises(CheckpointError):
        first.exchange("one", "")
    first.deadline_s = 20
    late = threading.Thread(target=first.exchange, args=("other", "of 0"))
    late.start()
    assert second.exchange("other", "of 1") == ["of 0", "of 1"]
    late.join()


def test_forgetting_leaves_nothing_of_a_topic():
    store = HashStore()
    alone = agreement(store, world_size=1)  # rank 0, which drops what is shared
    num_keys = store.num_keys()
    alone.exchange("topic", "note")
    alone.forget("topic")
    assert store.num_keys() == num_keys


def test_a_store_that_is_gone_is_told():
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, is_master=False)
    one = agreement(client, rank=1)
    del server
    with pytest.raises(CheckpointError, match="store of the process group does not answer.*Rank 0, or"):
        one.exchange("written", "here")


def test_one_process_agrees_with_itself():
    assert Alone().exchange("topic", "note") == ["note"]


def test_notes_survive_the_way():
    note = Note("/a", 0, 1, error="reason")
    assert Note.decode(note.encode()) == Note("/a", 0, 1, files=[], error="reason")


def test_all_reasons_are_told():
    notes = [
        Note("/a", 0, 0),
        Note("/a", 0, 0, error="OSError: full"),
        Note("/a", 0, 0, error="KeyError: 'x'"),
    ]
    with pytest.raises(CheckpointError, match=r"rank 1: OSError: full; rank 2: KeyError: 'x'"):
        check_all_well(notes, target="/a")


def test_what_fails_after_the_commit_does_not_deny_it():
    notes = [Note("a", 0, 0, error="KeyboardInterrupt", is_saved=True), Note("a", 0, 0)]
    with pytest.raises(CheckpointError, match="`a` is saved; what comes after it failed .rank 0: Keyboard"):
        check_all_well(notes, target="a")


def test_machines_may_have_different_folders_ranks_of_one_may_not():
    check_all_well([Note("/a", 0, 0), Note("/b", 1, 1)], target="/a")
    with pytest.raises(CheckpointError, match="`/a` and `/b`"):
        check_all_well([Note("/a", 0, 0), Note("/b", 0, 0)], target="/a")
