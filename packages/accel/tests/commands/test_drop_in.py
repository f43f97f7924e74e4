"""``accel drop-in``."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from accel.commands import drop_in
from accel.commands.drop_in import command, install, path_file, script_file, state_of
from accel_state.errors import ConfigError, StateError

posix = pytest.mark.skipif(os.name == "nt", reason="on Windows no command is written")


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """The two files of an environment without Accelerate."""
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if "site-packages" not in folder])
    (tmp_path / "a bin").mkdir()
    file, script = tmp_path / "accel-drop-in.pth", tmp_path / "a bin" / "accelerate"
    monkeypatch.setattr(drop_in, "path_file", lambda: file)
    monkeypatch.setattr(drop_in, "script_file", lambda: script)
    return file, script


def run(action, *, as_json=False):
    return command.run(argparse.Namespace(action=action, json=as_json))


def test_the_file_is_read_by_this_environment():
    assert str(path_file().parent) in sys.path
    assert path_file().suffix == ".pth"
    assert script_file().parent.resolve() == Path(sys.executable).parent.resolve()


def test_the_status_is_printed_as_json_too(environment, capsys):
    assert run("install") == run("status", as_json=True) == 0
    status = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert status == {
        "is_installed": True,
        "file": str(environment[0]),
        "command": str(environment[1]),
        "is_command_ours": os.name != "nt",
    }


def test_what_is_written_is_one_import_and_a_command_and_can_be_removed(environment, capsys):
    file, script = environment
    assert run("install") == run("install") == 0
    assert file.read_text().startswith("import ")
    assert file.read_text().count("\n") == 1
    assert script.exists() is (os.name != "nt")
    assert run("remove") == run("remove") == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        f"Removed `{file}`: `accelerate` no longer means accel.",
        "The drop-in is not installed here; nothing was removed.",
    ]
    assert not file.exists()
    assert not script.exists()


@posix
@pytest.mark.parametrize("start", [[], [sys.executable]], ids=["by name", "by Python"])
def test_the_command_starts_accel(environment, start):
    install(*environment)
    done = subprocess.run(
        [*start, environment[1], "launch", "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("usage: accel launch")


@posix
def test_the_interpreter_of_the_command_may_have_blanks_and_quotes_in_its_path(environment, monkeypatch):
    python = environment[0].with_name("it's a python")
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python))
    install(*environment)
    text = (
        environment[1]
        .read_text()
        .replace("from accel_launch.cli import main", "main = sys.orig_argv[0].upper")
    )
    environment[1].write_text(text)
    done = subprocess.run([environment[1]], check=False, capture_output=True, text=True)
    assert done.stderr.strip() == str(python).upper()


def test_a_command_that_others_wrote_is_named_and_stays(environment, capsys):
    file, script = environment
    script.write_text("other")
    for action in ("install", "status", "remove"):
        assert run(action) == 0
        assert f"`{script}` is not accel's and stays" in capsys.readouterr().out
        assert script.read_text() == "other"
    assert not file.exists()


def test_windows_reports_that_there_is_no_command(environment, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "name", "nt")
        said = state_of(environment[1])
    assert said.startswith(
        "There is no command `accelerate`, since only an installer can write an `.exe`: use `accel`"
    )


@pytest.mark.parametrize("is_installed", [True, False])
def test_the_file_is_silent_once_accel_is_uninstalled(tmp_path, environment, is_installed):
    install(*environment)
    if is_installed:
        (tmp_path / "accel").mkdir()
        (tmp_path / "accel" / "__init__.py").touch()
        (tmp_path / "accel" / "drop_in.py").write_text("print('dropped in')")
    code = f"import site; site.addsitedir({str(tmp_path)!r})"
    done = subprocess.run(  # -S: without the packages of this environment
        [sys.executable, "-S", "-E", "-c", code], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("dropped in\n" if is_installed else "", "")


@pytest.mark.parametrize("missing", [0, pytest.param(1, marks=posix)], ids=["packages", "commands"])
def test_a_folder_that_cannot_be_written_to_is_named_and_nothing_is_new(environment, missing):
    files = list(environment)
    files[missing] = files[missing].parent / "no folder" / files[missing].name
    with pytest.raises(
        ConfigError, match=r"no folder.*cannot be written: No such file(?s:.)*python -m accel.drop_in"
    ):
        install(*files)
    assert not any(os.path.lexists(file) for file in files)


def test_accelerate_must_be_uninstalled_first(tmp_path, monkeypatch):
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(StateError, match="pip uninstall accelerate"):
        install(tmp_path / "accel-drop-in.pth", tmp_path / "accelerate.sh")
    assert {one.name for one in tmp_path.iterdir()} == {"accelerate"}


def test_status_shows_whether_it_is_installed(capsys):
    assert run("status") == 0
    assert capsys.readouterr().out.startswith("Installed, by" if path_file().exists() else "Not installed.")
