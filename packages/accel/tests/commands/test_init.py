"""`accel init` copies examples, and says how to run them."""

import ast
from pathlib import Path

import pytest

from accel.commands.init import find_examples
from accel_launch.cli import main

pytestmark = pytest.mark.usefixtures("fresh_state")


def test_examples_are_listed_with_what_they_show(capsys):
    assert main(["init"]) == 0
    printed = capsys.readouterr().out
    assert "digits" in printed
    for name, path in find_examples().items():
        assert name in printed, path


def test_a_script_is_copied_with_a_config_and_the_command_that_runs_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "digits"]) == 0
    assert {path.name for path in Path("digits").iterdir()} == {"digits.py", "accel.yaml"}
    ast.parse(Path("digits/digits.py").read_text())
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2:] == ["cd digits", "accel launch --config_file accel.yaml digits.py"]


def test_what_an_example_needs_is_named(tmp_path, capsys):
    assert main(["init", "lora", str(tmp_path / "adapters")]) == 0
    assert "pip install transformers peft" in capsys.readouterr().out


def test_a_folder_is_copied_whole(tmp_path, capsys):
    assert main(["init", "own_strategy", str(tmp_path / "mine")]) == 0
    assert (tmp_path / "mine" / "src" / "delayed_averaging" / "strategy.py").is_file()
    assert capsys.readouterr().out.splitlines()[-1] == "accel launch --config_file accel.yaml train.py"


def test_a_notebook_is_opened_otherwise(tmp_path, capsys):
    assert main(["init", "notebook", str(tmp_path / "notes")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "jupyter lab notebook.ipynb"


def test_what_is_there_is_left_alone(tmp_path, capsys):
    (tmp_path / "digits.py").write_text("mine")
    assert main(["init", "digits", str(tmp_path)]) == 1
    assert "is there and not empty" in capsys.readouterr().err
    assert (tmp_path / "digits.py").read_text() == "mine"


def test_an_unknown_example_is_named_beside_those_there_are(capsys):
    assert main(["init", "digitz"]) == 1
    told = capsys.readouterr().err
    assert "digitz" in told
    assert "digits" in told
