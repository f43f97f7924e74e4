import os

import pytest

from accel.checkpoints import staging as module
from accel.checkpoints.choice import check_loadable, newest_checkpoint
from accel.checkpoints.digests import digest_of
from accel.checkpoints.manifest import FileEntry, Manifest, read_manifest, write_manifest
from accel.checkpoints.retention import remove_left_over, remove_old
from accel.checkpoints.staging import Staging, check_target
from accel_state.errors import ConfigError


def staged(target, token="token-1", **files):
    staging = Staging(target, token=token)
    staging.own()
    entries = []
    for name, content in {"random_states_0.pkl": "x", **files}.items():
        (staging.path / name).write_text(content)
        entries.append(FileEntry(name, len(content), digest_of(staging.path / name)))
    write_manifest(staging.path, Manifest(entries))
    return staging


def test_nothing_is_seen_before_it_is_published(tmp_path):
    staging = staged(tmp_path / "a")
    assert os.listdir(tmp_path) == [".tmp-a-token-1"]
    staging.publish()
    assert os.listdir(tmp_path) == ["a"]
    assert check_loadable(tmp_path / "a", verify=True).can_be_loaded


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_checkpoint_is_replaced_as_a_whole(tmp_path, monkeypatch, can_exchange):
    if not can_exchange:
        monkeypatch.setattr(module, "exchange", lambda one, other: False)
    staged(tmp_path / "a", old="1").publish()
    (tmp_path / "a" / "mine").write_text("mine")
    staged(tmp_path / "a", token="token-2", new="2").publish()
    assert os.listdir(tmp_path) == ["a"]
    assert sorted(os.listdir(tmp_path / "a")) == [
        "accel_checkpoint.json",
        "mine",
        "new",
        "random_states_0.pkl",
    ]


def test_a_checkpoint_that_lost_its_name_is_still_found(tmp_path, monkeypatch):
    """As after a kill between the two renames that some file systems need."""

    def killed_between(new, old):
        old.rename(old.parent / f"{module.PREVIOUS_PREFIX}{old.name}-token-2")
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "exchange", killed_between)
    staged(tmp_path / "checkpoint_0").publish()
    with pytest.raises(KeyboardInterrupt):
        staged(tmp_path / "checkpoint_0", token="token-2").publish()
    assert not (tmp_path / "checkpoint_0").exists()
    remove_left_over(tmp_path)
    displaced = newest_checkpoint(tmp_path)
    assert displaced.name == ".tmp-previous-checkpoint_0-token-2"
    assert check_loadable(tmp_path / "checkpoint_0", verify=True).path == displaced


def test_discarding_leaves_nothing(tmp_path):
    staged(tmp_path / "a").discard()
    assert os.listdir(tmp_path) == []


def test_left_overs_of_the_dead_go_and_those_of_the_living_stay(tmp_path):
    living = staged(tmp_path / "a", token="living-1")
    dead = staged(tmp_path / "b", token="dead-1")
    dead._release()
    (tmp_path / ".tmp-fresh-x-1").mkdir()
    for path in (living.path, dead.path):
        os.utime(path, (1, 1))
    remove_left_over(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".tmp-a-living-1", ".tmp-fresh-x-1"]
    living.discard()


def test_the_oldest_go_by_number_and_never_the_newest_save(tmp_path):
    for number in (9, 10, 11, 100):
        staged(tmp_path / f"checkpoint_{number}").publish()
    (tmp_path / "checkpoint_1").mkdir()  # a person's
    staged(tmp_path / "other").publish()
    remove_old(tmp_path, keep=2, newest=tmp_path / "checkpoint_9")
    assert sorted(os.listdir(tmp_path)) == ["checkpoint_1", "checkpoint_100", "checkpoint_9", "other"]


def test_a_file_or_the_working_directory_is_no_target(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        check_target(tmp_path / "file")
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    with pytest.raises(ConfigError, match="working directory"):
        check_target(tmp_path / "a")


def test_a_later_format_is_refused_with_the_way_out(tmp_path):
    staged(tmp_path / "a").publish()
    path = tmp_path / "a" / "accel_checkpoint.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(Exception, match="format version 2.*release that wrote it"):
        read_manifest(tmp_path / "a")
