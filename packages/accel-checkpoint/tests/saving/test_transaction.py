"""Saves on two machines of two ranks, each machine with its own disk; the ranks are threads."""

import os
import threading
from collections import defaultdict

import pytest

from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.listing import check_loadable, find_newest, part_of_save, token_of
from accel_checkpoint.manifest import Manifest, read_manifest
from accel_checkpoint.process_identity import stamp
from accel_checkpoint.saving import staging
from accel_checkpoint.saving.pending_files import TorchFile
from accel_checkpoint.saving.retention import Retention
from accel_checkpoint.saving.transaction import Report, Stage, error_in
from accel_state.errors import CheckpointError
from accel_state.topology import Topology

LIMIT_S = 20


DEAD = f"{stamp().rpartition('-')[0]}-1"
"""The stamp of a process with this one's pid that began, and ended, before it: as if all ranks had been killed."""


class Killed(BaseException):
    """The end of a rank, which does nothing any more."""


class Table:
    """Where the ranks lay down their notes; who is killed at a stage never comes to it."""

    def __init__(self, world_size, killed=None):
        self.world_size, self.killed = world_size, killed
        self.notes = defaultdict(dict)
        self.verdicts = {}
        self.changed = threading.Condition()

    def exchange(self, rank, topic, note):
        stage = topic.rpartition("/")[2]
        if self.killed == (rank, stage):
            with self.changed:
                self.killed = rank
                self.changed.notify_all()
            raise Killed
        with self.changed:
            notes = self.notes[topic]
            notes[rank] = note
            self.changed.notify_all()
            assert self.changed.wait_for(
                lambda: (
                    len(notes) == self.world_size
                    or (isinstance(self.killed, int) and self.killed not in notes)
                ),
                timeout=LIMIT_S,
            )
        if len(notes) < self.world_size:
            raise CheckpointError(f"Rank {self.killed} has ended before it reached `{topic}`.")
        return [notes[one] for one in range(self.world_size)]


class Seat:
    def __init__(self, table, rank):
        self.table, self.rank, self.world_size = table, rank, table.world_size

    def agree(self, topic, report, merge, is_begun=False):
        reports = self.table.exchange(self.rank, topic, report)
        with self.table.changed:  # rank 0 makes the verdict, for all to read
            if self.rank == 0:
                self.table.verdicts[topic] = merge(reports)
                self.table.changed.notify_all()
            assert self.table.changed.wait_for(lambda: topic in self.table.verdicts, timeout=LIMIT_S)
        return self.table.verdicts[topic]


def save(folder, name, *, value, killed=None, before_writing=lambda rank, folder: None, after_looking=None):
    """Save ``value`` from all ranks; return what each raised."""
    staging._active.clear()  # a new process has no entry of the last one
    table, raised = Table(4, killed), [None] * 4

    def collect(rank, stage):
        if after_looking is not None:
            after_looking(rank)

        def files(stage):
            before_writing(rank, stage.path)
            return [TorchFile(f"random_states_{rank}.pkl", {"accel_format": 1, "value": value})]

        stage.gather(files)

    def run(rank):
        node, local = divmod(rank, 2)
        topology = Topology(rank, 4, local, 2, node, 2)
        manifest = Manifest((), token=f"0a1b2c3d-{DEAD}-{value}", metrics={"loss": 1.0} if rank == 0 else {})
        stage = Stage(
            folder / f"node{node}" / name,
            manifest,
            topology=topology,
            agreement=Seat(table, rank),
            retention=Retention(newest=1),
        )
        try:
            if killed is not None and killed[0] == rank:
                stage._start()
                collect(rank, stage)
                stage._complete(stage._files)
            else:
                with stage:
                    collect(rank, stage)
        except CheckpointError as error:
            raised[rank] = error
        except Killed as error:
            raised[rank] = error
            staging._active.discard(stage.path)  # as the system does for a process

    ranks = [threading.Thread(target=run, args=[rank]) for rank in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=LIMIT_S)
        assert not rank.is_alive()
    return raised


def values_loaded(folder):
    """Return what the ranks would load: the main process's newest, and of the other machine what belongs to it."""
    main = find_newest(folder / "node0")
    other = part_of_save(folder / "node1" / main.name, token_of(main))
    found = {}
    for place, ranks in ((main, (0, 1)), (other, (2, 3))):
        check_loadable(place, verify=True)
        found |= {rank: read_torch_file(place / f"random_states_{rank}.pkl")["value"] for rank in ranks}
    return found


def all_of(value):
    return dict.fromkeys(range(4), value)


def test_each_machine_has_its_part_and_the_main_process_lists_all(tmp_path):
    def write_by_hand(rank, path):
        (path / f"by-hand-{rank}").write_text("")

    assert save(tmp_path, "checkpoint_1", value=1, before_writing=write_by_hand) == [None] * 4
    listed = {(entry.name, entry.place) for entry in read_manifest(tmp_path / "node0" / "checkpoint_1").files}
    assert listed == {
        (name, rank // 2) for rank in range(4) for name in (f"random_states_{rank}.pkl", f"by-hand-{rank}")
    }
    assert values_loaded(tmp_path) == all_of(1)
    for node in ("node0", "node1"):  # so that both machines keep the same best checkpoints
        assert read_manifest(tmp_path / node / "checkpoint_1").metrics == {"loss": 1.0}


def test_a_folder_that_another_rank_of_the_machine_has_made_is_not_taken_for_a_shared_disk(tmp_path):
    has_begun = threading.Event()
    real = Seat.agree

    class Slow(Seat):
        def agree(self, topic, report, merge, is_begun=False):
            verdict = real(self, topic, report, merge)
            if self.rank == 2 and topic.endswith("begun"):
                has_begun.wait(timeout=0.3)  # let the other rank go ahead, as far as it can
            return verdict

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "Seat", Slow)
        raised = save(
            tmp_path,
            "checkpoint_1",
            value=1,
            after_looking=lambda rank: rank == 3 and has_begun.set(),
        )
    assert raised == [None] * 4
    assert values_loaded(tmp_path) == all_of(1)


@pytest.mark.parametrize("name", ["checkpoint_2", "checkpoint_1"])
@pytest.mark.parametrize("stage", ["written", "parts", "published", "committed"])
@pytest.mark.parametrize("rank", [0, 2])
def test_whichever_rank_is_killed_one_save_is_complete_on_all_machines(tmp_path, rank, stage, name):
    assert save(tmp_path, "checkpoint_1", value=1) == [None] * 4
    raised = save(tmp_path, name, value=2, killed=(rank, stage))
    assert all(raised)
    main_has_committed = stage in ("published", "committed")
    assert values_loaded(tmp_path) == all_of(2 if main_has_committed else 1)
    # Going on, nothing stays behind.
    assert save(tmp_path, "checkpoint_3", value=3) == [None] * 4
    assert values_loaded(tmp_path) == all_of(3)
    assert [os.listdir(tmp_path / node) for node in ("node0", "node1")] == [["checkpoint_3"]] * 2


@pytest.mark.parametrize("name", ["checkpoint_2", "checkpoint_1"])
def test_if_the_main_process_cannot_commit_the_parts_are_rolled_back(tmp_path, name):
    assert save(tmp_path, "checkpoint_1", value=1) == [None] * 4

    def stand_in_the_way(rank, path):
        if rank == 0:
            (path / "accel_checkpoint.json").write_text("")

    raised = save(tmp_path, name, value=2, before_writing=stand_in_the_way)
    assert ["was not saved (rank 0: FileExistsError" in str(error) for error in raised] == [True] * 4
    assert values_loaded(tmp_path) == all_of(1)
    assert [os.listdir(tmp_path / node) for node in ("node0", "node1")] == [["checkpoint_1"]] * 2


def test_the_error_names_every_reason():
    reports = [
        Report("/a", 0, 0),
        Report("/a", 0, 0, error="OSError: full"),
        Report("/a", 0, 0, error="KeyError: 'x'"),
    ]
    assert "rank 1: OSError: full; rank 2: KeyError: 'x'" in error_in(reports)


def test_an_error_after_the_commit_reports_that_the_checkpoint_is_saved():
    reports = [Report("a", 0, 0, error="KeyboardInterrupt", is_saved=True), Report("a", 0, 0)]
    assert "`a` is saved, but a later step failed (rank 0: Keyboard" in error_in(reports)


def test_folders_may_differ_between_nodes_but_not_within_one():
    assert error_in([Report("/a", 0, 0), Report("/b", 1, 1)]) is None
    assert "`/a` and `/b`" in error_in([Report("/a", 0, 0), Report("/b", 0, 0)])
