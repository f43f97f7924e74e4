from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from accel_launch.cli import main, tpu_config

SSH = "Running gcloud compute tpus tpu-vm ssh pod --zone here --command "


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))

    def run(*arguments: str) -> str:
        assert main(["tpu-config", "--debug", *arguments]) == 0
        return capsys.readouterr().out.rstrip("\n")

    return run


ROOT = Path(__file__).parents[4]
PIP = "python3 -m pip install"
WHERE = ("--tpu_name", "pod", "--tpu-zone", "here")


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["--command", "echo a"], "set -e; cd /usr/share; echo a"),
        (["--command", "echo a", "--command", "ls -l; pwd"], "set -e; cd /usr/share; echo a; ls -l; pwd"),
        (["--command", "a", "b"], "set -e; cd /usr/share; a; b"),
        (
            ["--command", "a", "--install_accelerate", "--accelerate_version", "/srv/wheels/"],
            f"set -e; cd /usr/share; {PIP} /srv/wheels/*.whl; a",
        ),
    ],
)
def test_the_exact_command_is_printed(printed, arguments, command):
    assert printed(*WHERE, *arguments) == f"{SSH}'{command}' --worker all"


def test_all_packages_come_from_the_repository(printed):
    """From one address only, pip would take the packages that it needs from an index."""
    place = "git+https://host/accel.git@v1#subdirectory=packages/accel"
    command = printed(*WHERE, "--install_accel", "--accel_version", place, "--command", "a")
    (line,) = [step for step in shlex.split(command)[-3].split("; ") if step.startswith(PIP)]
    address = "git+https://host/accel.git@v1#subdirectory=packages/"
    assert sorted(shlex.split(line)[4:]) == sorted(address + each.name for each in ROOT.glob("packages/*"))


@pytest.mark.parametrize("version", [[], ["--accel_version", "0.2.0"], ["--accelerate_version", "latest"]])
def test_nothing_is_installed_by_name(tmp_path, monkeypatch, capsys, version):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert tpu_config([*WHERE, "--debug", "--install_accel", *version, "--command", "a"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "from a place, not from an index" in err
    assert "git+https://HOST/accel.git" in err


def test_a_step_that_fails_is_the_last(tmp_path, monkeypatch, capfd):
    """The machine of the pod is this one."""
    program = tmp_path / "gcloud"
    program.write_text('#!/bin/sh\nwhile [ "$1" != --command ]; do shift; done\nexec /bin/sh -c "$2"\n')
    program.chmod(0o755)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    steps = ("--command", "echo one", "--command", "(exit 3)", "--command", "echo two")
    assert main(["tpu-config", *WHERE, *steps]) == 3
    assert capfd.readouterr().out == "one\n"


def test_alpha(printed):
    assert printed(*WHERE, "--use_alpha", "--command", "a").startswith("Running gcloud alpha compute tpus ")


def test_the_config_file_and_the_file_of_commands_specify_the_rest(printed, tmp_path):
    (tmp_path / "commands.sh").write_text("echo hello\n\necho world\n")
    config = tmp_path / "c.yaml"
    config.write_text(f"tpu_name: pod\ntpu_zone: here\ncommand_file: {tmp_path / 'commands.sh'}\n")
    expected = f"{SSH}'set -e; cd /usr/share; echo hello; echo world' --worker all"
    assert printed("--config_file", str(config)) == expected
    config.write_text("tpu_name: pod\ntpu_zone: other\ncommands: [echo hello, echo world]\n")
    assert printed("--config_file", str(config), "--tpu_zone", "here") == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--command", "a"], "`--tpu_name` is missing"),
        (["--tpu_name", "pod", "--command", "a"], "`--tpu_zone` is missing"),
        (WHERE, "There is nothing to run on the pod"),
        ([*WHERE, "--command", "a", "--accel_version", "1"], "no effect without `--install_accel`"),
        ([*WHERE, "--command", "a", "--command_file", "b"], "both say what to run. Give one of them"),
        ([*WHERE, "--command_file", "none.sh"], "The file of commands `none.sh` cannot be read"),
    ],
)
def test_what_is_missing_is_reported(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))
    assert tpu_config(["--debug", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_the_command_is_run_and_its_exit_code_handed_on(tmp_path, monkeypatch, capfd):
    program = tmp_path / "gcloud"
    program.write_text('#!/bin/sh\nfor word in "$@"; do echo "<$word>"; done\nexit 7\n')
    program.chmod(0o755)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["tpu-config", *WHERE, "--command", "echo $(id)"]) == 7
    assert "<set -e; cd /usr/share; echo $(id)>\n<--worker>\n<all>\n" in capfd.readouterr().out


def test_without_gcloud_a_hint_is_given(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["tpu-config", *WHERE, "--command", "a"]) == 1
    assert (
        "`accel tpu-config` needs the program `gcloud`, which is not installed here"
        in capsys.readouterr().err
    )
