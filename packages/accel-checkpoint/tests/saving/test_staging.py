import json
import os
import subprocess
import sys
import time

import pytest

from accel_checkpoint import process_identity
from accel_checkpoint.files import FileEntry, digest_of
from accel_checkpoint.listing import check_loadable, find_newest
from accel_checkpoint.manifest import Manifest, read_manifest, write_manifest
from accel_checkpoint.process_identity import stamp
from accel_checkpoint.saving import staging as module
from accel_checkpoint.saving.retention import Retention, remove_old
from accel_checkpoint.saving.staging import Staging, check_target, remove_stale_folders
from accel_state.errors import CheckpointError, ConfigError


def staged(target, token="token-1", **files):
    staging = Staging(target, token=token)
    staging.make()
    entries = []
    for name, content in {"random_states_0.pkl": "x", **files}.items():
        (staging.path / name).write_text(content)
        entries.append(FileEntry(name, len(content), digest_of(staging.path / name)))
    write_manifest(staging.path, Manifest(entries))
    return staging


def committed(target, **options):
    staging = staged(target, **options)
    staging.commit()
    staging.finalize()


def test_nothing_is_seen_before_it_is_committed(tmp_path):
    staging = staged(tmp_path / "a")
    assert os.listdir(tmp_path) == [".tmp-a-token-1"]
    staging.commit()
    assert os.listdir(tmp_path) == ["a"]
    assert check_loadable(tmp_path / "a", verify=True).can_be_loaded


def names_and_places(folder):
    return {path.relative_to(folder): path.is_file() and path.stat().st_ino for path in folder.rglob("*")}


@pytest.mark.parametrize("before", ["nothing", "empty", "checkpoint", "checkpoint-in-two-steps", "files"])
def test_a_failed_commit_changes_nothing(tmp_path, monkeypatch, before):
    """Also what fails last of all, forcing the folder around it to disk."""
    if before != "nothing":
        (tmp_path / "a").mkdir()
    if before.startswith("checkpoint"):
        committed(tmp_path / "a", old="1")
    if before == "files":
        (tmp_path / "a" / "config").write_text("mine")
    if before.endswith("steps"):
        monkeypatch.setattr(module, "exchange", lambda one, other: False)
    staging = staged(tmp_path / "a", token="token-2", **{"sub-new": "2"})
    expected = names_and_places(tmp_path)
    real = module.force_to_disk

    def failing(path):
        if path == tmp_path:
            raise OSError("the disk has gone")
        real(path)

    monkeypatch.setattr(module, "force_to_disk", failing)
    with pytest.raises(OSError, match="the disk has gone"):
        staging.commit()
    assert names_and_places(tmp_path) == expected
    staging.discard()


def test_an_empty_folder_is_replaced_atomically_and_keeps_its_permissions(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o750)
    staging = staged(tmp_path / "a")
    place = staging.path.stat().st_ino
    staging.commit()
    assert (tmp_path / "a").stat().st_ino == place
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o750
    staging.finalize()


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_checkpoint_is_replaced_in_full(tmp_path, monkeypatch, can_exchange):
    if not can_exchange:
        monkeypatch.setattr(module, "exchange", lambda one, other: False)
    committed(tmp_path / "a", old="1")
    (tmp_path / "a" / "mine").write_text("mine")
    committed(tmp_path / "a", token="token-2", new="2")
    assert os.listdir(tmp_path) == ["a"]
    assert sorted(os.listdir(tmp_path / "a")) == [
        "accel_checkpoint.json",
        "mine",
        "new",
        "random_states_0.pkl",
    ]


def test_a_checkpoint_moved_aside_by_an_interrupted_save_is_still_found(tmp_path):
    """As after a kill between the two renames that some file systems need."""

    committed(tmp_path / "checkpoint_0")
    (tmp_path / "checkpoint_0" / "mine").write_text("mine")
    name = f"{module.PREVIOUS_PREFIX}checkpoint_0-0a1b2c3d-{stamp()}-2"
    (tmp_path / "checkpoint_0").rename(tmp_path / name)
    assert not (tmp_path / "checkpoint_0").exists()
    remove_stale_folders(tmp_path)
    displaced = find_newest(tmp_path)
    assert displaced.name == name
    assert check_loadable(tmp_path / "checkpoint_0", verify=True).path == displaced
    committed(tmp_path / "checkpoint_0", token="token-3")
    assert (tmp_path / "checkpoint_0" / "mine").read_text() == "mine"
    assert os.listdir(tmp_path) == ["checkpoint_0"]


def test_discarding_leaves_nothing(tmp_path):
    staged(tmp_path / "a").discard()
    assert os.listdir(tmp_path) == []


def test_stale_folders_of_ended_processes_are_removed_and_those_of_running_ones_kept(tmp_path):
    living = staged(tmp_path / "a", token=f"0a1b2c3d-{stamp()}-1")
    # Of an earlier save of this process, which could not be removed; of one that has ended; of another machine.
    staged(tmp_path / "b", token=f"0a1b2c3d-{stamp()}-2").release()
    staged(tmp_path / "c", token=f"0a1b2c3d-{stamp().rpartition('-')[0]}-1-1").release()
    staged(tmp_path / "d", token="0a1b2c3d-00000000-7-7-1").release()
    (tmp_path / ".tmp-another-programs").mkdir()
    (tmp_path / ".tmp-removed-e-12").mkdir()
    remove_stale_folders(tmp_path)
    elsewhere = ".tmp-d-0a1b2c3d-00000000-7-7-1"
    assert sorted(os.listdir(tmp_path)) == sorted([living.path.name, elsewhere, ".tmp-another-programs"])
    os.utime(tmp_path / elsewhere, (0, time.time() - 25 * 3600))
    remove_stale_folders(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([living.path.name, ".tmp-another-programs"])
    living.discard()


def test_without_process_start_times_only_old_folders_are_removed(tmp_path, monkeypatch):
    """All processes have the same stamp there, those of another living job too."""
    monkeypatch.setattr(process_identity, "Path", lambda path: tmp_path / "no such file")
    path = tmp_path / f".tmp-a-0a1b2c3d-{stamp()}-1"
    path.mkdir()
    remove_stale_folders(tmp_path)
    assert path.exists()
    os.utime(path, (0, 0))
    remove_stale_folders(tmp_path)
    assert not path.exists()


def test_the_folder_of_a_running_process_is_kept_at_any_age(tmp_path):
    """Also on file systems whose locks other machines do not see."""
    with subprocess.Popen(
        [sys.executable, "-c", "from accel_checkpoint.process_identity import stamp; print(stamp()); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        path = tmp_path / f".tmp-a-0a1b2c3d-{other.stdout.readline().strip()}-1"
        path.mkdir()
        os.utime(path, (0, 0))
        remove_stale_folders(tmp_path)
        assert path.exists()
        other.communicate("\n")
    remove_stale_folders(tmp_path)
    assert not path.exists()


def test_the_oldest_go_by_number_and_never_the_newest_save(tmp_path):
    for number in (9, 10, 11, 100):
        staged(tmp_path / f"checkpoint_{number}").commit()
    (tmp_path / "checkpoint_1").mkdir()  # a person's
    staged(tmp_path / "other").commit()
    remove_old(tmp_path, retention=Retention(newest=2), newest=tmp_path / "checkpoint_9")
    assert sorted(os.listdir(tmp_path)) == ["checkpoint_1", "checkpoint_100", "checkpoint_9", "other"]


def test_a_checkpoint_moved_aside_counts_like_any_other_of_its_number(tmp_path):
    for number in (9, 10, 11):
        committed(tmp_path / f"checkpoint_{number}")
    displaced = f"{module.PREVIOUS_PREFIX}checkpoint_10-0a1b2c3d-{stamp()}-2"
    (tmp_path / "checkpoint_10").rename(tmp_path / displaced)
    remove_old(tmp_path, retention=Retention(newest=2), newest=tmp_path / "checkpoint_11")
    assert sorted(os.listdir(tmp_path)) == [displaced, "checkpoint_11"]
    committed(tmp_path / "checkpoint_12")
    remove_old(tmp_path, retention=Retention(newest=2), newest=tmp_path / "checkpoint_12")
    assert sorted(os.listdir(tmp_path)) == ["checkpoint_11", "checkpoint_12"]


def test_a_file_is_no_target(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        check_target(tmp_path / "file")


@pytest.mark.parametrize("inner", ["", "b"])
def test_the_working_directory_and_its_parents_are_saved_into(tmp_path, monkeypatch, inner):
    (tmp_path / "a" / inner).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / inner)
    check_target(tmp_path / "a")
    (tmp_path / "a" / "train.py").write_text("mine")
    committed(tmp_path / "a", old="1")
    committed(tmp_path / "a", token="token-2", new="2")
    assert os.getcwd() == str(tmp_path / "a" / inner)
    assert {*os.listdir(tmp_path / "a")} - {"b"} == {
        "accel_checkpoint.json",
        "new",
        "old",  # belongs to no checkpoint by its name
        "random_states_0.pkl",
        "train.py",
    }
    assert os.listdir(tmp_path) == ["a"]
    assert check_loadable(tmp_path / "a", verify=True).can_be_loaded


def test_a_failed_commit_into_the_working_directory_changes_nothing(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    committed(tmp_path / "a", old="1")
    before = names_and_places(tmp_path)
    staging = staged(tmp_path / "a", token="token-2", new="2")
    monkeypatch.setattr(module, "force_to_disk", raising(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        staging.commit()
    staging.discard()
    assert names_and_places(tmp_path) == before
    assert check_loadable(tmp_path / "a", verify=True).can_be_loaded


def test_an_old_checkpoint_that_is_a_link_is_replaced_or_removed_without_a_trace(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for number in (1, 2):
        committed(tmp_path / "disk" / f"checkpoint_{number}")
        (tmp_path / "checkpoints" / f"checkpoint_{number}").symlink_to(
            tmp_path / "disk" / f"checkpoint_{number}"
        )
    newest = tmp_path / "checkpoints" / "checkpoint_2"
    committed(newest, token="token-2")
    remove_old(newest.parent, retention=Retention(newest=1), newest=newest)
    assert os.listdir(newest.parent) == ["checkpoint_2"]
    assert not newest.is_symlink()
    assert sorted(os.listdir(tmp_path / "disk")) == ["checkpoint_1", "checkpoint_2"]


def test_a_later_format_is_refused_with_a_hint(tmp_path):
    staged(tmp_path / "a").commit()
    path = tmp_path / "a" / "accel_checkpoint.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(Exception, match="format version 2.*release that wrote it"):
        read_manifest(tmp_path / "a")


def test_fields_that_a_later_release_adds_are_ignored(tmp_path):
    staged(tmp_path / "a").commit()
    path = tmp_path / "a" / "accel_checkpoint.json"
    content = json.loads(path.read_text())
    wanted = read_manifest(tmp_path / "a")
    content["later_field"] = "of a later release"
    del content["seal"]
    for entry in content["files"]:
        entry["compression"] = "none"
    path.write_text(json.dumps(content))
    assert read_manifest(tmp_path / "a") == wanted


@pytest.fixture
def mount_point(tmp_path):
    """A folder with a file system of its own, as containers have for their volumes."""
    folder = tmp_path / "volume"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "none", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"needs the right to mount: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_mount_point_may_become_a_checkpoint_and_is_not_replaced(mount_point):
    (mount_point / "lost+found").mkdir()
    committed(mount_point, a="1")
    assert sorted(os.listdir(mount_point)) == [
        "a",
        "accel_checkpoint.json",
        "lost+found",
        "random_states_0.pkl",
    ]
    assert check_loadable(mount_point, verify=True).can_be_loaded
    with pytest.raises(ConfigError, match=r"volume` is a mount point with a checkpoint.*volume/checkpoint"):
        check_target(mount_point)
    check_target(mount_point / "checkpoint")


def test_a_checkpoint_of_a_containers_image_is_named(tmp_path, mount_point):
    folders = {name: tmp_path / name for name in ("image", "changes", "work")}
    for folder in folders.values():
        folder.mkdir()
    committed(folders["image"] / "a", old="1")
    layers = f"lowerdir={folders['image']},upperdir={folders['changes']},workdir={folders['work']}"
    done = subprocess.run(
        ["mount", "-t", "overlay", "-o", layers, "overlay", str(mount_point)],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"needs the right to mount: {done.stderr.decode().strip()}")
    try:
        staging = staged(mount_point / "a", token="token-2", new="2")
        with pytest.raises(CheckpointError, match="part of a container's image. Save to another folder"):
            staging.commit()
        staging.discard()
        assert os.listdir(mount_point) == ["a"]
        assert check_loadable(mount_point / "a", verify=True).can_be_loaded
        committed(mount_point / "b", new="2")
        committed(mount_point / "b", token="token-3", new="3")
    finally:
        subprocess.run(["umount", str(mount_point)], check=True)


def test_a_failed_commit_into_a_mount_point_changes_nothing(mount_point, monkeypatch):
    staging = staged(mount_point)
    monkeypatch.setattr(module, "force_to_disk", raising(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        staging.commit()
    staging.discard()
    assert os.listdir(mount_point) == []


def raising(error):
    def function(*_):
        raise error

    return function
