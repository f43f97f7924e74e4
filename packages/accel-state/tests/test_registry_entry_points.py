from __future__ import annotations

import importlib.metadata
import os
import sys
import zipfile

import pytest

from accel_state.registry import EntryPoint, entry_points


def install(folder, distribution, text):
    """Lay down the metadata of an installed distribution."""
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(text)


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_reads_only_the_group_that_was_asked_for(site):
    install(
        site, "one", "[some.group]\nfirst = a.b:C\n# a remark\nsecond=d:e.f [extra]\n\n[other]\nthird = x:y\n"
    )
    assert entry_points("some.group") == (
        EntryPoint("first", "a.b:C", "one"),
        EntryPoint("second", "d:e.f", "one"),
    )
    assert entry_points("other") == (EntryPoint("third", "x:y", "one"),)
    assert entry_points("some") == ()


def test_a_distribution_counts_once_and_the_first_on_the_path_wins(site, tmp_path_factory, monkeypatch):
    later = tmp_path_factory.mktemp("later")
    install(site, "Same-Name", "[some.group]\nname = early:x\n")
    install(later, "same_name", "[some.group]\nname = late:x\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(later)])
    assert entry_points("some.group") == (EntryPoint("name", "early:x", "same-name"),)


def test_what_appears_with_a_new_path_is_found(tmp_path, monkeypatch):
    assert entry_points("some.group") == ()
    install(tmp_path, "one", "[some.group]\nname = a:b\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [found.name for found in entry_points("some.group")] == ["name"]


def test_archives_on_the_path_are_read_too(tmp_path, monkeypatch):
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("packed-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: packed\nVersion: 1.0\n")
        file.writestr("packed-1.0.dist-info/entry_points.txt", "[some.group]\nname = a:b\n")
    monkeypatch.syspath_prepend(str(archive))
    assert entry_points("some.group") == (EntryPoint("name", "a:b", "packed"),)


def test_paths_that_are_missing_are_passed_over(monkeypatch):
    monkeypatch.setattr(sys, "path", [os.path.join(os.sep, "no", "such", "folder"), *sys.path])
    assert entry_points("some.group") == ()


def test_a_file_that_is_not_text_takes_nobody_else_down(site):
    install(site, "good", "[some.group]\nname = a:b\n")
    install(site, "bad", "")
    (site / "bad-1.0.dist-info" / "entry_points.txt").write_bytes(b"[some.group]\nname = \xff\xfe:b\n")
    with pytest.warns(UserWarning, match=r"bad-1.0.dist-info.entry_points.txt` cannot be read"):
        assert [found.distribution for found in entry_points("some.group")] == ["good"]


def test_a_file_that_cannot_be_opened_takes_nobody_else_down(site):
    install(site, "good", "[some.group]\nname = a:b\n")
    (site / "bad-1.0.dist-info" / "entry_points.txt").mkdir(parents=True)
    with pytest.warns(UserWarning, match=r"bad-1.0.dist-info.entry_points.txt` cannot be read"):
        assert [found.distribution for found in entry_points("some.group")] == ["good"]


@pytest.mark.parametrize("group", ["console_scripts", "pytest11", "accel.strategies"])
def test_agrees_with_the_standard_library_on_what_is_installed(group):
    installed = importlib.metadata.entry_points(group=group)
    wanted = {(found.name, found.value.partition(" ")[0]) for found in installed}  # without extras
    assert {(found.name, found.value) for found in entry_points(group)} == wanted
