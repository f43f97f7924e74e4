from __future__ import annotations

import sys
import zipfile

import pytest

from accel_state.registry import distribution_of, entry_points


def install(folder, distribution, text):
    """Lay down the metadata of an installed distribution."""
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(text)


def lines_of(group):
    return [(point.name, point.value, distribution_of(point)) for point in entry_points(group)]


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_reads_only_the_group_that_was_requested(site):
    install(
        site, "one", "[some.group]\nfirst = a.b:C\n# a remark\nsecond=d:e.f [extra]\n\n[other]\nthird = x:y\n"
    )
    assert lines_of("some.group") == [("first", "a.b:C", "one"), ("second", "d:e.f [extra]", "one")]
    assert lines_of("other") == [("third", "x:y", "one")]
    assert lines_of("some") == []


def test_a_distribution_counts_once_and_the_first_on_the_path_wins(site, tmp_path_factory, monkeypatch):
    later = tmp_path_factory.mktemp("later")
    install(site, "Same-Name", "[some.group]\nname = early:x\n")
    install(later, "same_name", "[some.group]\nname = late:x\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(later)])
    assert lines_of("some.group") == [("name", "early:x", "Same-Name")]


def test_what_appears_with_a_new_path_is_found(tmp_path, monkeypatch):
    assert lines_of("some.group") == []
    install(tmp_path, "one", "[some.group]\nname = a:b\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [found.name for found in entry_points("some.group")] == ["name"]


def test_archives_on_the_path_are_read_too(tmp_path, monkeypatch):
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("packed-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: packed\nVersion: 1.0\n")
        file.writestr("packed-1.0.dist-info/entry_points.txt", "[some.group]\nname = a:b\n")
    monkeypatch.syspath_prepend(str(archive))
    assert lines_of("some.group") == [("name", "a:b", "packed")]


@pytest.mark.parametrize("text", [b"[some.group]\nname = \xff\xfe:b\n", b"[some.group]\nno equals sign\n"])
def test_a_file_that_cannot_be_read_is_named_and_the_other_packages_work(site, text):
    install(site, "broken", "")
    (site / "broken-1.0.dist-info" / "entry_points.txt").write_bytes(text)
    install(site, "one", "[some.group]\nname = a:b\n")
    with pytest.warns(UserWarning, match=r"`entry_points.txt` of the package `broken` in `.*` is ignored"):
        assert lines_of("some.group") == [("name", "a:b", "one")]
