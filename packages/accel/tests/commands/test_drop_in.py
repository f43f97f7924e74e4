"""``accel drop-in``."""

import argparse
import subprocess
import sys

import pytest

from accel.commands.drop_in import command, install, path_file, remove
from accel_state.errors import ConfigError, StateError


def test_the_file_is_read_by_this_environment():
    assert str(path_file().parent) in sys.path
    assert path_file().suffix == ".pth"


def test_what_is_written_is_one_import_and_can_be_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if "site-packages" not in folder])
    file = tmp_path / "accel-drop-in.pth"
    install(file)
    install(file)
    assert file.read_text().startswith("import ")
    assert file.read_text().count("\n") == 1
    assert remove(file)
    assert not remove(file)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_installed", [True, False])
def test_the_file_is_silent_once_accel_is_uninstalled(tmp_path, monkeypatch, is_installed):
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if "site-packages" not in folder])
    install(tmp_path / "accel-drop-in.pth")
    if is_installed:
        (tmp_path / "accel").mkdir()
        (tmp_path / "accel" / "__init__.py").touch()
        (tmp_path / "accel" / "drop_in.py").write_text("print('dropped in')")
    code = f"import site; site.addsitedir({str(tmp_path)!r})"
    done = subprocess.run(  # -S: without the packages of this environment
        [sys.executable, "-S", "-E", "-c", code], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("dropped in\n" if is_installed else "", "")


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if "site-packages" not in folder])
    file = tmp_path / "no folder" / "accel-drop-in.pth"
    with pytest.raises(ConfigError, match=r"cannot be written: No such file(?s:.)*python -m accel.drop_in"):
        install(file)


def test_accelerate_itself_must_be_uninstalled_first(tmp_path, monkeypatch):
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(StateError, match="pip uninstall accelerate"):
        install(tmp_path / "accel-drop-in.pth")
    assert not (tmp_path / "accel-drop-in.pth").exists()


def test_status_says_whether_it_is_installed(capsys):
    assert command.run(argparse.Namespace(action="status")) == 0
    assert capsys.readouterr().out.startswith("Installed, by" if path_file().exists() else "Not installed.")
