"""Completion in a shell."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accel_launch.cli import main


def completed(capsys, *words):
    assert main(["completion", "words", *words]) == 0
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["laun"], ["launch"]),
        (["--v"], ["--version"]),
        (["launch", "--mixed"], ["--mixed_precision"]),
        (["launch", "--cpu", "--mixed_precision", "f"], ["fp16", "fp8"]),
        (["config", "u"], ["update"]),
        (["config", "show", "--al"], ["--all"]),
        (["launch", "--cpu", "tra"], []),
        (["nothing", ""], []),
    ],
    ids=" ".join,
)
def test_words_are_those_that_the_command_takes(capsys, words, expected):
    found = completed(capsys, *words)
    assert found[: len(expected)] == expected if expected else found == []


def test_bash_completes_commands_flags_and_files(tmp_path):
    (tmp_path / "train.py").touch()
    script = """
        eval "$(accel completion bash)"
        complete -p accel
        COMP_WORDS=(accel launch --num_proc); COMP_CWORD=2; _accel
        printf '%s\\n' "${COMPREPLY[@]}"
        COMP_WORDS=(accel launch tra); COMP_CWORD=2; _accel
        echo "${#COMPREPLY[@]} $(compgen -o default -- tra)"
    """
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    shell = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert shell.stdout.splitlines() == [
        "complete -o default -F _accel accel",
        "--num_processes",
        "0 train.py",
    ]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_request_the_same_words(capsys, shell):
    assert main(["completion", shell]) == 0
    assert "accel completion words" in capsys.readouterr().out


def test_an_unknown_shell_is_an_error(capsys):
    assert main(["completion", "csh"]) == 2
    assert "csh" in capsys.readouterr().err
