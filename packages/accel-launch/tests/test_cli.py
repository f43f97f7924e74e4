from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from accel_launch import __version__
from accel_launch.cli import env, launch, main

LIGHT = """
import sys
import time
from accel_launch.cli import main
code = main(sys.argv[1:])
heavy = sorted({"torch", "numpy", "yaml", "psutil", "questionary", "accel_launch.rendezvous"} & set(sys.modules))
print("heavy:", *heavy, file=sys.stderr)
sys.exit(code)
"""


def run(*command: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=180, check=False, **options
    )


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"]])
def test_help_lists_the_commands(capsys, monkeypatch, arguments):
    monkeypatch.setenv("COLUMNS", "120")
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: accel ")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "launch Start a script, in as many processes as asked for" in lines
    assert "env Show versions, machine and config file, to paste into a bug report" in lines


@pytest.mark.parametrize("columns", [40, 60])
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["launch", "--help"],
        ["launch", "--help", "fsdp"],
        ["config", "show", "--help"],
        ["env", "-h"],
    ],
)
def test_help_fits_into_the_terminal_but_for_names_that_nothing_breaks(
    capsys, monkeypatch, arguments, columns
):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(arguments) == 0
    wide = [line for line in capsys.readouterr().out.splitlines() if len(line) > columns]
    assert [line for line in wide if not line.startswith("  --") or len(line.split()) > 2] == []


def test_help_of_a_command_may_be_requested_first(capsys):
    assert main(["--help", "env"]) == 0
    assert capsys.readouterr().out.startswith("usage: accel env ")
    assert main(["--help", "lanch"]) == 2
    assert "Did you mean `launch`?" in capsys.readouterr().err


def test_the_help_of_config_show_names_the_flags_of_a_launch_in_one_line(capsys):
    assert main(["config", "show", "--help"]) == 0
    text = capsys.readouterr().out
    assert "`accel launch --help all` lists" in text
    assert len(text.splitlines()) < 20


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"accel {__version__}\n"


@pytest.mark.parametrize(
    ("name", "ending"),
    [("lanch", "Did you mean `launch`? See `accel --help`.\n"), ("--cpu", ". See `accel --help`.\n")],
)
def test_an_unknown_command_is_a_usage_error_with_the_nearest_name(capsys, name, ending):
    assert main([name]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: Unknown command `{name}`. Known: ")
    assert message.endswith(ending)


def test_the_aliases_are_the_commands(capsys):
    assert launch(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: accel launch ")
    assert env(["--nothing"]) == 2
    assert "unknown option `--nothing`" in capsys.readouterr().err


def test_a_wrong_flag_of_a_command_is_a_usage_error(capsys):
    assert main(["env", "--jsno"]) == 2
    assert "unknown option `--jsno`. Did you mean `--json`?" in capsys.readouterr().err


def test_the_nearest_flag_of_an_action_is_named(capsys):
    assert main(["config", "show", "--num_proces", "2"]) == 2
    assert "unknown option `--num_proces`. Did you mean `--num_processes`?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], ""),
        (["launch", "--help"], ""),
        (["env", "--json"], " psutil"),
        (["launch", "--dry-run", "--num_processes=2", "x.py"], ""),
    ],
)
def test_nothing_heavy_is_imported(tmp_path, arguments, heavy, no_user_config):
    (tmp_path / "x.py").touch()
    finished = run("-c", LIGHT, *arguments, cwd=tmp_path, env=no_user_config)
    assert finished.returncode == 0
    assert finished.stderr.splitlines()[-1] == f"heavy:{heavy}"


def test_the_launcher_stays_light_while_a_script_runs(tmp_path, no_user_config):
    script = tmp_path / "x.py"
    script.write_text("raise SystemExit(5)")
    finished = run("-c", LIGHT, "launch", "--cpu", str(script), cwd=tmp_path, env=no_user_config)
    assert finished.returncode == 5
    assert finished.stderr.splitlines() == ["error: The script ended with exit code 5.", "heavy:"]


def test_python_dash_m_is_the_command_and_hands_its_options_on(tmp_path, no_user_config):
    script = tmp_path / "x.py"
    script.write_text("import sys; print(sys.flags.dev_mode, sys.argv[1:])")
    finished = run(
        "-X", "dev", "-m", "accel_launch", "launch", "--cpu", str(script), "-m", "--cpu", env=no_user_config
    )
    assert (finished.returncode, finished.stdout) == (0, "True ['-m', '--cpu']\n")


@pytest.mark.parametrize(("program", "usage"), [("accel", "accel "), ("accel-launch", "accel launch ")])
def test_the_installed_programs_start(program, usage):
    path = Path(sys.executable).parent / program
    finished = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=180, check=True)
    assert finished.stdout.startswith(f"usage: {usage}")


@pytest.mark.parametrize("arguments", [["--help"], ["launch", "--help", "all"], ["env"]])
def test_a_reader_that_has_gone_is_no_traceback(no_user_config, arguments):
    command = [sys.executable, "-m", "accel_launch", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | no_user_config
    ) as child:
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 1


def test_a_reader_that_has_gone_ends_a_command_that_prints_by_itself():
    code = (
        "from accel_launch import cli\n"
        "cli._run_command = lambda name, arguments: print('line' * 100_000)\n"
        "raise SystemExit(cli.run_command('prints', []))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 1


def test_without_an_output_nothing_is_reported(no_user_config):
    command = [sys.executable, "-m", "accel_launch", "launch"]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&- 2>&-', "sh", *command], env=os.environ | no_user_config, check=False
    )
    assert done.returncode == 2


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_ranks_continue_where_a_standard_stream_is_closed(tmp_path, no_user_config, closed):
    """The second line comes once the launcher has passed on the first."""
    script = tmp_path / "twice.py"
    script.write_text(
        "import os, select, sys\n"
        "for word in ('once', 'twice'):\n"
        "    for stream in (sys.stdout, sys.stderr):\n"
        "        print(word, file=stream, flush=True)\n"
        "    pipes = select.poll()\n"
        "    [pipes.register(descriptor, 0) for descriptor in (1, 2)]\n"
        "    assert not pipes.poll(300)\n"  # the other end of a pipe is closed
        "open(f'{os.environ[\"RANK\"]}.txt', 'w').close()\n"
    )
    command = [sys.executable, "-m", "accel_launch", "launch", "--cpu", "--num_processes", "3", str(script)]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *command],
        env=os.environ | no_user_config,
        cwd=tmp_path,
        check=False,
        capture_output=True,
    )
    assert (done.returncode, len(list(tmp_path.glob("?.txt")))) == (0, 3), done


def test_ctrl_c_is_no_traceback(tmp_path, no_user_config):
    """While a config file is read that never comes."""
    reader, writer = os.pipe()
    os.write(writer, b"debug: false\n")
    command = [sys.executable, "-m", "accel_launch", "config", "show", "--config_file", f"/dev/fd/{reader}"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | no_user_config, pass_fds=(reader,)
    ) as child:
        while child.poll() is None and select.select([reader], [], [], 0)[0]:  # until it is read
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        assert child.stderr.read() == "error: Interrupted.\n"
    os.close(reader)
    os.close(writer)
    assert child.returncode == 130
