"""Checkpoints that other programs change while they are saved or loaded, odd names, and loads that are interrupted."""

import errno
import os
import shutil
import warnings
from pathlib import Path

import pytest
import torch

from accel import Accelerator, ProjectConfiguration
from accel.checkpoints.items import OptimizerItem
from accel_checkpoint.saving import staging
from accel_state.errors import CheckpointError, ConfigError, StateError

pytestmark = pytest.mark.usefixtures("fresh_state")


class Run:
    """A run whose only weight and optimizer state have one value, so that two saves are distinguished."""

    def __init__(self, root, *, total_limit=None, is_numbered=True):
        project = ProjectConfiguration(
            project_dir=str(root), automatic_checkpoint_naming=is_numbered, total_limit=total_limit
        )
        self.accelerator = Accelerator(cpu=True, project_config=project)
        model = torch.nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.folder = Path(root) / "checkpoints"
        self.step()

    def step(self):
        self.accelerator.backward(self.model(torch.ones(1, 1)).sum())
        self.optimizer.step()

    def save(self, value, folder=None, **options):
        with torch.no_grad():
            self.accelerator.unwrap_model(self.model).weight.fill_(value)
            self.optimizer.state[next(iter(self.optimizer.state))]["momentum_buffer"].fill_(value)
        return self.accelerator.save_state(folder, **options)

    @property
    def values(self):
        [state] = self.optimizer.state.values()
        weight = self.accelerator.unwrap_model(self.model).weight
        return weight.item(), state["momentum_buffer"].item()


def test_a_newest_checkpoint_that_vanishes_before_it_is_loaded_is_looked_for_again(tmp_path, monkeypatch):
    from accel.checkpoints import loading

    run = Run(tmp_path)
    run.save(1.0)
    run.save(2.0)
    real = loading.check_loadable

    def vanished(folder):
        shutil.rmtree(tmp_path / "checkpoints" / "checkpoint_1", ignore_errors=True)
        return real(folder)

    monkeypatch.setattr(loading, "check_loadable", vanished)
    assert run.accelerator.load_state()
    assert run.values == (1.0, 1.0)


def test_a_named_checkpoint_that_vanishes_is_named(tmp_path):
    run = Run(tmp_path, is_numbered=False)
    with pytest.raises(CheckpointError, match=r"There is no checkpoint `.*gone`"):
        run.accelerator.load_state(tmp_path / "gone")


def test_an_emptied_newest_checkpoint_is_named_when_an_older_one_is_loaded(tmp_path):
    run = Run(tmp_path)
    run.save(1.0)
    run.save(2.0)
    for file in (run.folder / "checkpoint_1").iterdir():
        file.unlink()
    with pytest.warns(UserWarning, match="`checkpoint_1` is incomplete: It is empty"):
        run.accelerator.load_state()
    assert run.values == (1.0, 1.0)


def test_a_link_to_itself_among_the_checkpoints_is_no_checkpoint(tmp_path):
    run = Run(tmp_path)
    run.save(1.0)
    for name in ("best", "checkpoint_9"):
        (run.folder / name).symlink_to(run.folder / name)
    run.accelerator.load_state()
    assert run.values == (1.0, 1.0)


def test_broken_checkpoints_beyond_the_limit_are_removed_and_named(tmp_path):
    run = Run(tmp_path, total_limit=2)
    for value in range(3):
        run.save(float(value))
    (run.folder / "checkpoint_1" / "model.safetensors").unlink()
    (run.folder / "checkpoint_2" / "accel_checkpoint.json").unlink()
    (run.folder / "checkpoint_0").mkdir()
    (run.folder / "checkpoint_0" / "notes.txt").write_text("of a person")
    run.save(3.0)
    with pytest.warns(UserWarning, match=r"checkpoint_1`, which was damaged, is removed"):
        run.save(4.0)
    assert sorted(os.listdir(run.folder)) == ["checkpoint_0", "checkpoint_3", "checkpoint_4"]


def test_retention_keeps_a_checkpoint_that_has_another_inside(tmp_path):
    run = Run(tmp_path, total_limit=1)
    first = Path(run.save(1.0))
    Run(tmp_path / "other", is_numbered=False).save(7.0, first / "best")
    with pytest.warns(
        UserWarning, match="checkpoint_0` is kept beyond the limit: another checkpoint is inside"
    ):
        run.save(2.0)
    assert sorted(os.listdir(run.folder)) == ["checkpoint_0", "checkpoint_1"]
    run.accelerator.load_state(first / "best")
    assert run.values == (7.0, 7.0)


@pytest.mark.parametrize("is_numbered", [True, False])
def test_a_rename_that_is_done_but_reported_as_failed_is_no_failure(tmp_path, monkeypatch, is_numbered):
    """As on NFS, which repeats a request whose answer was lost."""
    run = Run(tmp_path, is_numbered=is_numbered)
    target = None if is_numbered else tmp_path / "latest"
    run.save(1.0, target)

    def lying(rename):
        def call(one, other, **options):
            rename(one, other, **options)
            raise OSError(errno.ENOENT, "No such file or directory")

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lying(os.rename))
        patch.setattr(staging, "exchange", lying(staging.exchange))
        saved = run.save(2.0, target)
    run.save(3.0, tmp_path / "other" if not is_numbered else None)
    run.accelerator.load_state(saved)
    assert run.values == (2.0, 2.0)
    assert len(os.listdir(Path(saved).parent)) == 3 if is_numbered else 2


def test_the_folder_of_a_live_save_is_kept_by_a_machine_whose_clock_is_ahead(tmp_path, monkeypatch):
    import time

    (tmp_path / ".tmp-a-0a1b2c3d-00000000-7-7-1").mkdir()
    monkeypatch.setattr(time, "time", lambda: time.time_ns() / 1e9 + 2 * 86400)
    run = Run(tmp_path, is_numbered=False)
    run.save(1.0, tmp_path / "latest")
    assert (tmp_path / ".tmp-a-0a1b2c3d-00000000-7-7-1").exists()


class Interrupt(BaseException):
    pass


def test_a_load_that_was_interrupted_halfway_must_be_repeated(tmp_path, monkeypatch):
    run = Run(tmp_path)
    run.save(1.0)
    run.save(2.0)

    def interrupted(*_):
        raise Interrupt

    with monkeypatch.context() as patch, pytest.raises(Interrupt):
        patch.setattr(OptimizerItem, "load", interrupted)
        run.accelerator.load_state(run.folder / "checkpoint_0")
    assert run.values == (1.0, 2.0)
    with pytest.raises(StateError, match="`backward` needs a state of one save.*Call `load_state` again"):
        run.step()
    with pytest.raises(StateError, match="`save_state` needs a state of one save"):
        run.save(3.0)
    run.accelerator.load_state(run.folder / "checkpoint_0")
    assert run.values == (1.0, 1.0)
    run.step()
    run.save(3.0)


def test_a_load_that_is_refused_before_it_changes_anything_leaves_the_run_usable(tmp_path):
    run = Run(tmp_path)
    run.save(1.0)
    with pytest.raises(CheckpointError):
        run.accelerator.load_state(tmp_path / "none")
    run.step()
    run.save(2.0)


@pytest.mark.parametrize("num_bytes", [217, 255])
def test_names_of_any_length_are_saved_and_replaced(tmp_path, num_bytes):
    run = Run(tmp_path, is_numbered=False)
    for value in (1.0, 2.0):
        run.save(value, tmp_path / ("ä" * (num_bytes // 2) + "a" * (num_bytes % 2)))
    [saved] = os.listdir(tmp_path)
    run.save(3.0, tmp_path / "other")
    run.accelerator.load_state(tmp_path / saved)
    assert run.values == (2.0, 2.0)


@pytest.mark.parametrize("path", ["a\0b", "link/a"])
def test_paths_that_cannot_be_are_refused_in_words(tmp_path, path):
    (tmp_path / "link").symlink_to(tmp_path / "link")
    run = Run(tmp_path, is_numbered=False)
    for call in (run.accelerator.save_state, run.accelerator.load_state):
        with pytest.raises((ConfigError, CheckpointError), match="cannot be used|There is no checkpoint"):
            call(f"{tmp_path}/{path}")


def test_a_state_that_contains_itself_is_refused_by_name(tmp_path):
    run = Run(tmp_path)
    run.accelerator.register_for_checkpointing(state := Itself())
    state.state["self"] = state.state
    with pytest.raises(CheckpointError, match=r"`custom_checkpoint_0.pkl` cannot be saved.*is cyclic"):
        run.save(1.0)


class Itself:
    def __init__(self):
        self.state = {}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_names_that_safetensors_cannot_hold_are_refused(tmp_path):
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    with pytest.raises(ConfigError, match="is not UTF-8"):
        accelerator.save_model(model, os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    model.register_parameter("\ud800", torch.nn.Parameter(torch.ones(1)))
    with pytest.raises(CheckpointError, match=r"tensor with '\\ud800', which is not UTF-8"):
        accelerator.save_model(model, tmp_path / "a")


def load_different_checkpoints(root):
    run = Run(root, is_numbered=False)
    for name in ("x", "y"):
        run.save(1.0, f"{root}/{name}")
    rank = run.accelerator.process_index
    with pytest.raises(CheckpointError, match=r"different checkpoints: rank 0 `.*/x`, rank 1 `.*/y`"):
        run.accelerator.load_state(f"{root}/{'xy'[rank]}")
    if rank == 0:
        shutil.copytree(f"{root}/x", f"{root}/z")
    run.accelerator.wait_for_everyone()
    run.accelerator.load_state(f"{root}/{'xz'[rank]}")  # copies of one save
    return run.values


def test_ranks_that_are_given_different_checkpoints_name_both(world, tmp_path):
    assert world(2).run(load_different_checkpoints, str(tmp_path)) == [(1.0, 1.0)] * 2


def test_a_manifest_of_many_missing_files_has_a_short_error_without_control_characters(tmp_path):
    from accel_checkpoint.files import FileEntry
    from accel_checkpoint.manifest import Manifest, write_manifest

    names = [f"\x1b[31m{number}\n" for number in range(1000)]
    write_manifest(tmp_path, Manifest([FileEntry(name, 1, "") for name in names]))
    run = Run(tmp_path / "run", is_numbered=False)
    with warnings.catch_warnings(), pytest.raises(CheckpointError) as error:
        warnings.simplefilter("error")
        run.accelerator.load_state(tmp_path)
    assert len(str(error.value)) < 20_000
    assert "There are more" in str(error.value)
    assert "\x1b" not in str(error.value)
