"""What fails on one rank while a checkpoint is loaded is an error on every rank, and no rank waits for it."""

import io
import os
import shutil
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path

import pytest
from torch import nn

from accel import Accelerator, ProjectConfiguration
from accel_checkpoint import progress
from accel_checkpoint.file_names import MANIFEST_NAME
from accel_state import current_runtime
from accel_state.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.usefixtures("fresh_state")


def saved_run(folder, *, num_machines=1):
    """Return an accelerator whose two ranks have saved `checkpoint_0` in ``folder``, and the checkpoint."""
    project = ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=project)
    if num_machines == 2:
        runtime = current_runtime()
        runtime.topology = replace(
            runtime.topology,
            num_nodes=2,
            node_rank=runtime.topology.rank,
            local_rank=0,
            local_world_size=1,
        )
    accelerator.prepare(nn.Linear(2, 2))
    return accelerator, accelerator.save_state()


def outcome_of_loading(accelerator, checkpoint):
    try:
        accelerator.load_state(checkpoint)
    except (CheckpointError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return accelerator.project_configuration.iteration


def refusing(folder):
    """Return an `os.scandir` to which ``folder`` does not answer."""
    real = os.scandir

    def scan(path="."):
        if os.fspath(path) == folder:
            raise OSError("the disk does not answer")
        return real(path)

    return scan


def load_with_scans_failing_on(rank, folder):
    accelerator, checkpoint = saved_run(folder)
    with pytest.MonkeyPatch.context() as patch:
        if accelerator.process_index == rank:
            patch.setattr(os, "scandir", refusing(os.path.dirname(checkpoint)))
        return outcome_of_loading(accelerator, checkpoint)


def test_one_rank_of_a_machine_scans_the_folder_for_the_next_number(world, tmp_path):
    assert world(2).run(load_with_scans_failing_on, 1, str(tmp_path)) == [1, 1]


def test_a_folder_that_cannot_be_scanned_is_an_error_on_every_rank(world, tmp_path):
    here, there = world(2).run(load_with_scans_failing_on, 0, str(tmp_path))
    assert here == "OSError: the disk does not answer"
    assert "was not loaded (rank 0: OSError: the disk does not answer)" in there


def load_on_two_machines_with_a_later_checkpoint_on_the_second(folder):
    accelerator, checkpoint = saved_run(f"{folder}/first", num_machines=2)
    if not accelerator.is_main_process:
        checkpoint = f"{folder}/second/checkpoint_0"
        shutil.copytree(f"{folder}/first/checkpoints/checkpoint_0", checkpoint)
        shutil.copytree(checkpoint, f"{folder}/second/checkpoint_5")
    return outcome_of_loading(accelerator, checkpoint)


def test_the_next_number_is_free_on_every_machine(world, tmp_path):
    assert world(2).run(load_on_two_machines_with_a_later_checkpoint_on_the_second, str(tmp_path)) == [6, 6]


def load_where_rank_0_cannot_read(folder):
    accelerator, checkpoint = saved_run(folder, num_machines=2)
    return outcome_of_loading(
        accelerator, f"{folder}/{'a' * 300}" if accelerator.is_main_process else checkpoint
    )


def test_a_manifest_that_rank_0_cannot_read_is_an_error_on_every_machine(world, tmp_path):
    here, there = world(2).run(load_where_rank_0_cannot_read, str(tmp_path))
    assert "File name too long" in here
    assert "was not loaded (rank 0: OSError: [Errno " in there
    assert "File name too long" in there


def load_what_there_is(folder):
    """Ask for the newest checkpoint of a project that was killed in its first save, and again after a save."""
    project = ProjectConfiguration(project_dir=folder, automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=project)
    accelerator.prepare(nn.Linear(2, 2))
    before = accelerator.load_state(missing_ok=True)
    accelerator.save_state()
    return before, accelerator.load_state(missing_ok=True)


@pytest.mark.parametrize("left", ["", "checkpoints/.checkpoint_0.part"])
def test_a_project_without_a_complete_checkpoint_restarts_where_it_may(world, tmp_path, left):
    (tmp_path / left).mkdir(parents=True, exist_ok=True)
    assert world(2).run(load_what_there_is, str(tmp_path)) == [(False, True)] * 2


def test_a_run_that_restarts_next_to_a_broken_checkpoint_is_warned(tmp_path):
    project = ProjectConfiguration(project_dir=tmp_path, automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=project)
    saved = accelerator.save_state()
    Path(saved, MANIFEST_NAME).unlink()
    with pytest.warns(
        UserWarning, match="No checkpoint in .* is complete, so none is loaded. `checkpoint_0` is incomplete"
    ) as warned:
        assert not accelerator.load_state(missing_ok=True)
    assert [one.filename for one in warned] == [__file__]


def test_a_missing_checkpoint_is_an_error_that_explains_how_to_restart(tmp_path):
    accelerator = Accelerator(cpu=True, project_dir=tmp_path)
    with pytest.raises(CheckpointError, match="or `missing_ok=True` to start from the beginning"):
        accelerator.load_state()


def test_a_named_checkpoint_is_never_optional(tmp_path):
    accelerator = Accelerator(cpu=True, project_dir=tmp_path)
    with pytest.raises(ConfigError, match="Leave `input_dir` out"):
        accelerator.load_state(tmp_path / "mine", missing_ok=True)


def load_slowly(folder, quiet_s):
    accelerator, checkpoint = saved_run(folder)
    shown = io.StringIO()
    with pytest.MonkeyPatch.context() as patched, redirect_stderr(shown):
        patched.setattr(progress, "QUIET_S", quiet_s)
        accelerator.load_state(checkpoint)
    return "Loading checkpoint_0" in shown.getvalue()


def test_only_the_first_rank_shows_a_bar_and_only_if_a_load_takes_long(world, tmp_path):
    pytest.importorskip("tqdm")
    assert world(2).run(load_slowly, tmp_path / "long", 0) == [True, False]
    assert world(2).run(load_slowly, tmp_path / "short", 20) == [False, False]
