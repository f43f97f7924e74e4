import threading

import pytest
from torch.distributed import HashStore

from accel.checkpoints.agreement import Alone, StoreAgreement
from accel.checkpoints.notes import Note, check_all_well
from accel_state.errors import CheckpointError


def test_every_rank_gets_all_notes_in_order():
    store, results = HashStore(), {}

    def rank(number):
        agreement = StoreAgreement(store, rank=number, world_size=3, deadline_s=20)
        results[number] = agreement.exchange("topic", f"of {number}")

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert results == {number: ["of 0", "of 1", "of 2"] for number in range(3)}


def test_who_does_not_come_is_named_after_the_deadline():
    agreement = StoreAgreement(HashStore(), rank=0, world_size=3, deadline_s=0.05)
    with pytest.raises(CheckpointError, match=r"Rank 1, 2 did not come to `written` within 0.05 s"):
        agreement.exchange("written", "here")


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


def test_machines_may_have_different_folders_ranks_of_one_may_not():
    check_all_well([Note("/a", 0, 0), Note("/b", 1, 1)], target="/a")
    with pytest.raises(CheckpointError, match="`/a` and `/b`"):
        check_all_well([Note("/a", 0, 0), Note("/b", 0, 0)], target="/a")
