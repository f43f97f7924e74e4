import errno
import os
import random
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from accel_checkpoint import CheckpointFolder, SavedCheckpoint
from accel_checkpoint.listing import State, inspect
from accel_checkpoint.saving import staging
from accel_state import PartialState
from accel_state.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.usefixtures("fresh_state")


@pytest.fixture(autouse=True)
def process(fresh_state):
    PartialState(cpu=True)


def save(folder, step, value=0.0, **options):
    with folder.save(step, **options) as stage:
        stage.write("model.safetensors", {"w": torch.full((2, 3), value)})
        stage.write("optimizer.bin", {"lr": 0.1, "step": step})
        stage.write("notes.json", {"loss": [1, 2]})
    return stage


def num_calls_of_save(folder, step):
    num_calls = 0

    def count(_frame, event, _):
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        save(folder, step)
    finally:
        sys.setprofile(None)
    return num_calls


def test_a_save_below_the_limit_reads_no_other_checkpoint(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=20)
    costs = [num_calls_of_save(folder, step) for step in range(18)]
    assert (
        costs[-1] - costs[2] < 15 * 150
    )  # comparing the names takes 65 for each; reading the checkpoints, over 300


def test_what_is_saved_is_read(tmp_path):
    folder = CheckpointFolder(tmp_path / "runs" / "a")
    assert folder.newest() is None
    assert folder.checkpoints() == []
    save(folder, 7, 3.0)
    saved = folder.newest()
    assert saved.step == 7
    assert saved.path == tmp_path / "runs" / "a" / "checkpoint_7"
    assert sorted(saved.names) == ["model.safetensors", "notes.json", "optimizer.bin"]
    assert torch.equal(saved.read("model.safetensors")["w"], torch.full((2, 3), 3.0))
    assert saved.read("optimizer.bin") == {"lr": 0.1, "step": 7}
    assert saved.read("notes.json") == {"loss": [1, 2]}
    assert load_file(saved.path / "model.safetensors").keys() == {"w"}  # other readers too
    saved.verify()


def test_the_newest_have_the_highest_steps_and_only_these_stay(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    for step in (5, 20, 100):
        save(folder, step)
    assert [saved.step for saved in folder.checkpoints()] == [20, 100]
    assert folder.newest().step == 100


def test_a_later_checkpoint_of_another_package_is_not_the_newest(tmp_path):
    folder = CheckpointFolder(tmp_path)
    other = tmp_path / "checkpoint_9"
    other.mkdir()
    torch.save({"random_state": []}, other / "random_states_0.pkl")
    assert inspect(other).state is State.FOREIGN
    assert folder.newest() is None
    save(folder, 2)
    assert folder.newest().step == 2


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=1)
    save(folder, 3, 1.0)
    save(folder, 3, 2.0)
    assert folder.newest().read("model.safetensors")["w"][0, 0] == 2
    assert os.listdir(tmp_path) == ["checkpoint_3"]


def test_an_error_in_the_block_leaves_the_last_checkpoint_and_nothing_else(tmp_path):
    folder = CheckpointFolder(tmp_path)
    save(folder, 1)
    for blocking in (True, False):
        with pytest.raises(ValueError, match="of the user"), folder.save(2, blocking=blocking) as stage:
            stage.write("model.safetensors", {"w": torch.zeros(1)})
            raise ValueError("of the user")
    assert folder.newest().step == 1
    assert os.listdir(tmp_path) == ["checkpoint_1"]
    save(folder, 2)
    assert folder.newest().step == 2


def test_a_background_save_has_the_values_from_the_end_of_the_block(tmp_path):
    folder, weight = CheckpointFolder(tmp_path), torch.ones(1000)
    with folder.save(1, blocking=False) as stage:
        stage.write("model.safetensors", {"w": weight})
    weight.fill_(7)
    assert stage.handle.wait() == tmp_path / "checkpoint_1"
    assert torch.equal(folder.newest().read("model.safetensors")["w"], torch.ones(1000))


def fail_in_background(folder):
    with folder.save(1, blocking=False) as stage:
        stage.write("same.json", 1)
        stage.write("same.json", 2)


def test_the_error_of_a_background_save_is_raised_by_wait_once(tmp_path):
    folder = CheckpointFolder(tmp_path)
    fail_in_background(folder)
    with pytest.raises(CheckpointError, match="same.json"):
        folder.wait()
    folder.wait()


def test_the_error_of_a_background_save_keeps_no_later_call_from_its_work(tmp_path, caplog):
    folder = CheckpointFolder(tmp_path)
    fail_in_background(folder)
    assert folder.newest() is None
    [message] = [record.getMessage() for record in caplog.records]
    assert f"Saving `{tmp_path / 'checkpoint_1'}` in the background failed: " in message
    assert "same.json" in message
    fail_in_background(folder)
    with folder.save(2) as stage:
        stage.write("same.json", 1)
    assert [record.getMessage().partition(" failed")[0] for record in caplog.records] == [
        f"Saving `{tmp_path / 'checkpoint_1'}` in the background"
    ] * 2
    assert folder.newest().step == 2


@pytest.fixture
def small_files():
    """Return a function that sets the largest size that a file can have, as a quota does."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda num_bytes: resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("name", ["state.bin", "model.safetensors"])
def test_the_file_that_the_disk_cannot_take_is_named(tmp_path, small_files, name, blocking):
    folder = CheckpointFolder(tmp_path)
    save(folder, 1)
    small_files(10_000)
    with pytest.raises(CheckpointError, match=rf"File too large: .*{name}'") as raised:
        with folder.save(2, blocking=blocking) as stage:
            stage.write(name, {"w": torch.zeros(10_000)})
        stage.handle.wait()
    assert "unexpected pos" not in str(raised.value)
    small_files(10_000_000)
    save(folder, 3)
    assert [saved.step for saved in folder.checkpoints()] == [1, 3]
    assert sorted(os.listdir(tmp_path)) == ["checkpoint_1", "checkpoint_3"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_named_though_torch_writes_the_file(tmp_path):
    folder = CheckpointFolder(tmp_path)
    with pytest.raises(CheckpointError, match=r"could not write a file; \d+ bytes are free on the disk of"):
        with folder.save(1) as stage:
            stage.gather(lambda stage: torch.save(torch.zeros(1000), "/dev/full"))


def test_a_checkpoint_is_saved_though_the_working_directory_has_been_deleted(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    folder = CheckpointFolder(tmp_path / "runs")
    save(folder, 1, 3.0)
    assert torch.equal(folder.newest().read("model.safetensors")["w"], torch.full((2, 3), 3.0))


@pytest.mark.parametrize("replaces", [False, True])
def test_a_commit_that_cannot_be_undone_is_reported_and_nothing_is_removed(tmp_path, monkeypatch, replaces):
    """As on a disk that becomes read-only between the rename and its `fsync`."""
    folder = CheckpointFolder(tmp_path)
    save(folder, 1, 1.0)
    target = tmp_path / ("checkpoint_1" if replaces else "checkpoint_2")
    before, fsync = target.stat().st_ino if replaces else None, os.fsync

    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    def fail_after_the_rename(descriptor):
        if target.exists() and target.stat().st_ino != before:
            monkeypatch.setattr(os, "rename", refuse)
            monkeypatch.setattr(staging, "exchange", refuse)
            refuse()
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_after_the_rename)
        with pytest.raises(
            CheckpointError, match="may be saved.*Read-only.*Check it with `accel checkpoint ver"
        ):
            save(folder, 1 if replaces else 2, 2.0)
    monkeypatch.undo()
    assert {load_file(path)["w"].max().item() for path in tmp_path.glob("**/model.safetensors")} == {1.0, 2.0}
    assert CheckpointFolder(tmp_path).newest().read("model.safetensors")["w"].max() == 2.0
    save(folder, 3, 3.0)
    assert folder.newest().step == 3


def test_a_name_that_could_not_be_loaded_is_refused_at_the_save(tmp_path):
    folder = CheckpointFolder(tmp_path / os.fsdecode(b"run-\xff"))
    with pytest.raises(CheckpointError, match=r"run-\\udcff.*is not UTF-8.*Choose another"):
        save(folder, 1)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("blocking", [True, False])
def test_files_written_by_other_means_belong_to_the_checkpoint(tmp_path, blocking):
    folder = CheckpointFolder(tmp_path)
    with folder.save(1, blocking=blocking) as stage:
        (stage.path / "engine").mkdir()
        (stage.path / "engine" / "part").write_text("by hand")
        stage.wrote("engine/part")
        (stage.path / "left").write_text("nobody said so")
    folder.wait()
    assert sorted(folder.newest().names) == ["engine/part", "left"]
    (tmp_path / "checkpoint_1" / "engine" / "part").write_text("by HAND")
    with pytest.raises(CheckpointError, match="`engine/part` is not what was saved"):
        folder.newest().verify()


def test_random_states_are_restored(tmp_path):
    def drawn():
        return random.random(), np.random.rand(), torch.rand(1).item()

    folder = CheckpointFolder(tmp_path)
    with folder.save(1) as stage:
        stage.write_random_states()
    expected = drawn()
    assert drawn() != expected
    folder.newest().restore_random_states()
    assert drawn() == expected


@pytest.mark.parametrize(
    "name", ["model", "model.txt", "../out.bin", "a/../../b.bin", "/a.bin", "accel_checkpoint.json"]
)
def test_other_names_are_refused(tmp_path, name):
    folder = CheckpointFolder(tmp_path)
    with pytest.raises(ConfigError, match="`.*`"), folder.save(1) as stage:
        stage.write(name, {})
    assert os.listdir(tmp_path) == []


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    folder = CheckpointFolder(tmp_path)
    with pytest.raises(CheckpointError, match="threading"), folder.save(1) as stage:
        stage.write("state.bin", {"thread": threading.Thread()})
    with (
        pytest.raises(CheckpointError, match="safetensors stores plain dense tensors"),
        folder.save(1) as stage,
    ):
        stage.write("model.safetensors", {"lr": 0.1})
    assert folder.newest() is None


def test_bad_arguments_are_named(tmp_path):
    with pytest.raises(ConfigError, match="`keep` must be at least 1"):
        CheckpointFolder(tmp_path, keep=0)
    with pytest.raises(ConfigError, match="`step` must not be negative"):
        CheckpointFolder(tmp_path).save(-1)
    with pytest.raises(CheckpointError, match="`accel_checkpoint.json` is missing"):
        SavedCheckpoint(tmp_path)


def together(folder):
    state = PartialState()
    rank, world_size = state.process_index, state.num_processes
    checkpoints = CheckpointFolder(folder, keep=1)
    for step in (1, 2):
        torch.manual_seed(10 * step + rank)
        with checkpoints.save(step, blocking=step == 1) as stage:
            stage.write("shared.json", {"by": rank})
            stage.write(f"own_{rank}.json", {"by": rank}, rank=None)
            stage.write_random_states()
        expected = torch.rand(1).item()
    saved = checkpoints.newest()
    torch.manual_seed(0)
    saved.restore_random_states()
    assert torch.rand(1).item() == expected
    assert saved.step == 2
    assert saved.read("shared.json") == {"by": 0}
    assert [saved.read(f"own_{other}.json")["by"] for other in range(world_size)] == list(range(world_size))
    try:
        with checkpoints.save(3):
            if rank == 1:
                raise ValueError("of rank 1")
    except (ValueError, CheckpointError) as error:
        return type(error).__name__, str(error)
    return None


def test_ranks_save_together(world, tmp_path):
    outcomes = world(2).run(together, str(tmp_path))
    assert outcomes[1] == ("ValueError", "of rank 1")
    assert outcomes[0][0] == "CheckpointError"
    assert "rank 1: ValueError: of rank 1" in outcomes[0][1]
    assert os.listdir(tmp_path) == ["checkpoint_2"]


def refuse(*_, **__):
    raise OSError("the disk does not answer")


def newest_with_scans_failing_on(rank, folder):
    checkpoints = CheckpointFolder(folder)
    save(checkpoints, 1)
    with pytest.MonkeyPatch.context() as patch:
        if PartialState().process_index == rank:
            patch.setattr(os, "scandir", refuse)
            patch.setattr(os, "listdir", refuse)
        try:
            return checkpoints.newest().step
        except CheckpointError as error:
            return str(error)


def test_only_rank_0_scans_the_folder(world, tmp_path):
    assert world(2).run(newest_with_scans_failing_on, 1, str(tmp_path)) == [1, 1]


def test_a_folder_that_rank_0_cannot_read_is_an_error_on_every_rank(world, tmp_path):
    here, there = world(2).run(newest_with_scans_failing_on, 0, str(tmp_path))
    reason = (
        f"The folder of checkpoints `{tmp_path}` cannot be read (the disk does not answer). Check its perm"
    )
    assert here.startswith(reason)
    assert there.startswith(f"No checkpoint was chosen in `{tmp_path}` (rank 0: CheckpointError: {reason}")


def newest_after_a_failure_that_rank_0_was_told_of(folder):
    checkpoints = CheckpointFolder(folder)
    save(checkpoints, 1)
    with checkpoints.save(2, blocking=False) as stage:
        stage.write(f"{PartialState().process_index}.json", 1, rank=None)
        (stage.path / "1.json").mkdir(exist_ok=True)  # where rank 1 cannot write its file
    told = str(stage.handle.exception()) if PartialState().process_index == 0 else ""
    return told, checkpoints.newest().step


def test_a_failure_that_one_rank_has_not_raised_keeps_no_rank_from_the_newest(world, tmp_path):
    (told, step), (_, other) = world(2).run(newest_after_a_failure_that_rank_0_was_told_of, str(tmp_path))
    assert "rank 1: FileExistsError" in told
    assert step == other == 1


class Late(torch.Tensor):
    """A value on a device that a stream has still to compute; a reader waits for that stream only."""

    @staticmethod
    def __new__(cls, value):
        return torch.Tensor._make_wrapper_subclass(cls, value.shape, dtype=value.dtype, device="cuda:0")

    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return args[0]
        torch.cuda.current_stream(args[0].device).synchronize()
        return args[0].value.clone()


def test_a_save_from_a_side_stream_waits_for_what_the_stream_computes(tmp_path, monkeypatch):
    value, of_thread = torch.zeros(2), threading.local()
    of_thread.stream = SimpleNamespace(synchronize=lambda: value.fill_(7))
    default = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: getattr(of_thread, "stream", default))
    with torch.serialization.safe_globals([Late]), CheckpointFolder(tmp_path).save(1) as stage:
        stage.write("a.bin", {"w": Late(value)})
        stage.write("b.bin", {"w": Late(value)})
    for name in ("a.bin", "b.bin"):
        saved = torch.load(stage.target / name, weights_only=True)
        assert saved["w"].tolist() == [7, 7]


def test_a_checkpoint_is_saved_and_read_whatever_the_default_device_is(tmp_path):
    folder, weight = CheckpointFolder(tmp_path), torch.arange(6.0).view(2, 3)
    with torch.device("meta"):
        with folder.save(1, blocking=False) as stage:
            stage.write(
                "model.safetensors", {"w": weight, "odd": weight[0, :1].half(), "last": weight.byte()}
            )
            stage.write("optimizer.bin", {"m": weight})
            stage.write_random_states()
        folder.wait()
        saved = folder.newest()
        saved.restore_random_states()
        assert torch.equal(saved.read("model.safetensors")["w"], weight)
        assert torch.equal(saved.read("optimizer.bin")["m"], weight)
