"""`load_state()` never loads an older checkpoint silently."""

import contextlib
import ctypes
import os
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from accel import Accelerator, ProjectConfiguration
from accel_checkpoint import CheckpointFolder
from accel_checkpoint.command import as_table, find, verify
from accel_checkpoint.file_names import MANIFEST_NAME
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_state.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.usefixtures("fresh_state")
CAPABILITIES = (1, 2)  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH of capability.h
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="permissions as Linux has them")


@contextlib.contextmanager
def obeying_permissions():
    """Make permissions of files apply to root too, in this thread."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    before = sets[0]
    for number in CAPABILITIES:
        sets[0] &= ~(1 << number)
    assert libc.capset(header, sets) == 0
    try:
        yield
    finally:
        sets[0] = before
        assert libc.capset(header, sets) == 0


def run_in(folder, **options):
    project = ProjectConfiguration(project_dir=str(folder), automatic_checkpoint_naming=True, **options)
    accelerator = Accelerator(cpu=True, project_config=project)
    model = nn.Linear(3, 2, dtype=torch.float64)
    model, _ = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), foreach=True))
    return accelerator, model


def fill(model, value):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def saved_run(folder, **options):
    """Return a run that has saved the values 0, 1 and 2, and the folder of its checkpoints."""
    accelerator, model = run_in(folder, **options)
    for value in range(3):
        fill(model, value)
        accelerator.save_state()
    return accelerator, model, Path(folder) / "checkpoints"


def cut_short(newest):
    content = (newest / "optimizer.bin").read_bytes()
    (newest / "optimizer.bin").write_bytes(content[:-100])


def empty_manifest(newest):
    (newest / MANIFEST_NAME).write_bytes(b"")


def no_manifest(newest):
    (newest / MANIFEST_NAME).unlink()


def nothing_but_the_loader(newest):
    for path in newest.iterdir():
        path.rename(path.with_name("optimizer.bin"))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut_short, "is damaged: `optimizer.bin` has .* bytes instead of"),
        (empty_manifest, "is damaged: The manifest .* is damaged"),
        (no_manifest, "is incomplete: It has no `accel_checkpoint.json`"),
        (nothing_but_the_loader, "is incomplete: It has no `accel_checkpoint.json`"),
    ],
)
def test_an_older_checkpoint_is_loaded_with_a_warning(tmp_path, damage, reason):
    accelerator, model, folder = saved_run(tmp_path)
    damage(folder / "checkpoint_2")
    match = (
        f"checkpoint_1` is loaded, which is not the newest checkpoint. `checkpoint_2` {reason}.* Run `accel"
    )
    with pytest.warns(UserWarning, match=match) as warned:
        accelerator.load_state()
    assert [one.filename for one in warned] == [__file__]
    assert model.weight.unique().tolist() == [1]
    assert accelerator.project_configuration.iteration == 3


def test_a_complete_newest_checkpoint_is_loaded_without_a_warning(tmp_path):
    accelerator, model, folder = saved_run(tmp_path)
    no_manifest(folder / "checkpoint_1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accelerator.load_state()
    assert model.weight.unique().tolist() == [2]


@on_linux
@pytest.mark.parametrize("name", ["checkpoint_2", f"checkpoint_2/{MANIFEST_NAME}"])
def test_a_newest_checkpoint_that_cannot_be_read_is_an_error(tmp_path, name):
    accelerator, model, folder = saved_run(tmp_path)
    (folder / name).chmod(0)
    match = "checkpoint_2` may be the newest, but cannot be read: .Errno 13. .* Make it readable or remove it, or pass"
    with obeying_permissions():
        for missing_ok in (False, True):
            with pytest.raises(CheckpointError, match=match):
                accelerator.load_state(missing_ok=missing_ok)
        assert model.weight.unique().tolist() == [2]
        accelerator.load_state(folder / "checkpoint_1")
    (folder / name).chmod(0o700)
    assert model.weight.unique().tolist() == [1]


@on_linux
def test_numbers_and_retention_count_with_a_checkpoint_that_cannot_be_read(tmp_path):
    accelerator, _, folder = saved_run(tmp_path, total_limit=3)
    (folder / "checkpoint_2").chmod(0)
    with obeying_permissions():
        accelerator.load_state(folder / "checkpoint_1")
        assert Path(accelerator.save_state()).name == "checkpoint_3"
        accelerator.save_state()
        accelerator.project_configuration.iteration = 2
        with pytest.raises(ConfigError, match="checkpoint_2` exists"):
            accelerator.save_state()
    (folder / "checkpoint_2").chmod(0o700)
    assert sorted(os.listdir(folder)) == [f"checkpoint_{number}" for number in (1, 2, 3, 4)]


@on_linux
def test_a_folder_without_a_number_that_cannot_be_read_is_no_checkpoint(tmp_path):
    accelerator, model, folder = saved_run(tmp_path)
    (folder / "lost+found").mkdir(mode=0)
    with obeying_permissions(), warnings.catch_warnings():
        warnings.simplefilter("error")
        accelerator.load_state()
    assert model.weight.unique().tolist() == [2]


@on_linux
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.bin", "random_states_0.pkl"])
def test_a_file_that_may_not_be_read_is_not_called_missing_or_damaged(tmp_path, name):
    accelerator, _, folder = saved_run(tmp_path)
    (folder / "checkpoint_2" / name).chmod(0)
    with (
        obeying_permissions(),
        pytest.raises(PermissionError, match=f"{name}` cannot be read: Permission denied. It may"),
    ):
        accelerator.load_state(folder / "checkpoint_2", strict=False)


def test_damage_is_not_taken_for_an_error_that_the_caller_handles(tmp_path):
    _, _, folder = saved_run(tmp_path)
    path = folder / "checkpoint_2" / "optimizer.bin"
    path.write_bytes(bytes(path.stat().st_size))
    try:
        (tmp_path / "config").mkdir()
        (tmp_path / "config").read_bytes()
    except OSError:
        with pytest.raises(
            CheckpointError, match="is not a readable `torch.save` file: File is not a zip file"
        ):
            read_torch_file(path)


@on_linux
def test_the_command_lists_a_checkpoint_that_cannot_be_read(tmp_path, capsys):
    _, _, folder = saved_run(tmp_path)
    (folder / "checkpoint_1").chmod(0)
    with obeying_permissions():
        found = find(tmp_path)
        lines = [line.split() for line in as_table(found).splitlines()[1:]]
        assert verify(found[1:2]) == 1
    assert lines[1] == ["checkpoint_1", "?", "?", "?", "?", "unreadable"]
    assert "Permission denied" in capsys.readouterr().err
    (folder / "checkpoint_1").chmod(0o700)


def test_an_error_that_passes_is_not_noticed(tmp_path, monkeypatch):
    """One stale answer of a network disk: the second look finds the newest."""
    accelerator, model, folder = saved_run(tmp_path)
    real, failed = os.listdir, []

    def listdir(path="."):
        if os.fspath(path) == str(folder / "checkpoint_2") and not failed:
            failed.append(path)
            raise OSError(116, "Stale file handle", os.fspath(path))
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    fill(model, -1)
    accelerator.load_state()
    assert failed
    assert model.weight.unique().tolist() == [2]


def test_a_user_of_folders_is_warned_too(tmp_path):
    Accelerator(cpu=True)
    folder = CheckpointFolder(tmp_path)
    for step in (1, 2):
        with folder.save(step) as stage:
            stage.write("state.bin", {"step": step})
    no_manifest(tmp_path / "checkpoint_2")
    with pytest.warns(UserWarning, match="`checkpoint_2` is incomplete"):
        assert folder.newest().step == 1


def load_with_warnings(folder):
    accelerator, model = run_in(folder)
    with warnings.catch_warnings(record=True) as caught, obeying_permissions():
        warnings.simplefilter("always")
        try:
            accelerator.load_state()
        except CheckpointError as error:
            return str(error), len(caught)
        return next(model.parameters()).unique().tolist(), len(caught)


def test_only_the_main_process_warns(world, tmp_path):
    _, _, folder = saved_run(tmp_path)
    no_manifest(folder / "checkpoint_2")
    assert world(3).run(load_with_warnings, str(tmp_path)) == [([1], 1), ([1], 0), ([1], 0)]


@on_linux
def test_a_newest_checkpoint_that_cannot_be_read_is_an_error_on_every_rank(world, tmp_path):
    _, _, folder = saved_run(tmp_path)
    (folder / "checkpoint_2").chmod(0)
    outcomes = world(2).run(load_with_warnings, str(tmp_path))
    (folder / "checkpoint_2").chmod(0o700)
    for message, num_warnings in outcomes:
        assert "checkpoint_2` may be the newest, but cannot be read" in message
        assert num_warnings == 0
