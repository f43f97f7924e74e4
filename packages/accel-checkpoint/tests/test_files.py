import pytest

from accel_checkpoint.files import files_below, is_plain_name, regular_file
from accel_state.errors import CheckpointError


@pytest.mark.parametrize("name", ["a", "a.bin", "a/b.bin", "..a"])
def test_plain_names(name):
    assert is_plain_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../a", "a/../b", "/a", "a//b", "a/", "./a", "a\\b", "C:a", "C:/a", "a\0", 7]
)
def test_names_that_may_lead_elsewhere(name):
    assert not is_plain_name(name)


def test_a_file_is_not_reached_through_a_linked_folder(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").write_text("x")
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    assert regular_file(tmp_path, "real/a").read_text() == "x"
    with pytest.raises(CheckpointError, match="symbolic link"):
        regular_file(tmp_path, "linked/a")


def test_only_regular_files_are_accepted(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match="not a regular file"):
        regular_file(tmp_path, "folder")
    with pytest.raises(CheckpointError, match="`a` is missing"):
        regular_file(tmp_path, "a")


def test_files_are_listed_with_their_folders(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c").write_text("")
    (tmp_path / "a").write_text("")
    assert list(files_below(tmp_path)) == ["a", "b/c"]


def hub_cache(folder):
    """A repository as `huggingface_hub` keeps it: files are links to blobs."""
    blobs, snapshot = folder / "models--a" / "blobs", folder / "models--a" / "snapshots" / "1234"
    blobs.mkdir(parents=True)
    (snapshot / "inner").mkdir(parents=True)
    (blobs / "abc").write_text("x")
    return snapshot


def test_links_lead_to_regular_files_only(tmp_path):
    snapshot = hub_cache(tmp_path)
    (snapshot / "a").symlink_to("../../blobs/abc")
    (snapshot / "inner" / "a").symlink_to("../../../blobs/abc")
    assert regular_file(snapshot, "a").read_text() == "x"
    assert regular_file(snapshot, "inner/a").read_text() == "x"
    (snapshot / "b").symlink_to("/dev/zero")
    (snapshot / "c").symlink_to("../../blobs")
    (snapshot / "d").symlink_to("../../blobs/none")
    for name in "bcd":
        with pytest.raises(
            CheckpointError, match="is a symbolic link, but not to a regular file. Replace it"
        ):
            regular_file(snapshot, name)
