from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from accel_launch import __version__
from accel_launch.fingerprint import differences, faults, fingerprint
from accel_launch.launchers.hosts import Host
from accel_launch.launchers.preflight import check_hosts, ssh_command
from accel_launch.launchers.ssh import SSHLauncher, _fitting, _with_ranks
from accel_launch.machine import num_cpu_cores
from accel_launch.plan import LaunchPlan
from accel_launch.processes.output import MESSAGE_MARK
from accel_state.errors import ConfigError, LaunchError

# A stand-in for ssh: runs the command here, with the shell's rules, as ssh would there; hosts called `far*` fail,
# and those called `lost*` once the run has begun.
FAKE_SSH = """#!{python}
import os, shlex, sys
host, text = sys.argv[-3], sys.argv[-1]
if host.startswith("far"):
    sys.stderr.write("no route\\n")
    sys.exit(255)
if host.startswith("lost") and "accel_launch.remote_node" in text:
    sys.stderr.write("client_loop: send disconnect: Broken pipe\\n")
    sys.exit(255)
if host == os.environ.get("OTHER_HOST"):
    os.environ["PYTHONPATH"] = os.environ["OTHER_PYTHONPATH"]
words = shlex.split(text)
os.environ["FAKE_HOST"] = host
os.execv(words[0], words)
"""


@pytest.fixture
def fake_ssh(tmp_path, monkeypatch):

    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(FAKE_SSH.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def plan(request_for, script: Path, *arguments: str, environ=None, **flags: str) -> LaunchPlan:

    request = request_for(str(script), *arguments, flags={"use_cpu": "true"} | flags, environ=environ)

    request = replace(request, cwd=script.parent, interpreter=(sys.executable,))
    return SSHLauncher().plan(request)


def test_the_plan_names_what_runs_where(request_for, tmp_path):
    made = plan(request_for, tmp_path / "t.py", hosts="me@h1,h2", num_processes="4", ssh_options="-p 2222")
    assert [(process.host, process.rank) for process in made.processes] == [
        ("me@h1", 0),
        ("me@h1", 1),
        ("h2", 2),
        ("h2", 3),
    ]
    assert {process.environ["MASTER_ADDR"] for process in made.processes} == {"h1"}
    assert made.processes[3].environ["LOCAL_RANK"] == "1"
    assert made.options["ssh_options"] == "-p 2222"


def test_ssh_gets_one_text_that_a_shell_reads_back(request_for):
    command = ssh_command(Host("h1", 2), ["-p", "2222"], ["python", "-c", "a b; $HOME"])
    assert command[:3] == ("ssh", "-p", "2222")
    assert command[-3:-1] == ("h1", "--")
    assert shlex.split(command[-1]) == ["python", "-c", "a b; $HOME"]
    assert "BatchMode=yes" in command


def test_ranks_run_on_their_hosts_and_secrets_stay_off_the_command_line(
    request_for, tmp_path, fake_ssh, capfd
):
    script = tmp_path / "t.py"
    script.write_text("import os, sys; print(os.environ['FAKE_HOST'], os.environ['RANK'], *sys.argv[1:])")
    assert SSHLauncher().run(plan(request_for, script, "a b", hosts="h1,host2")) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == ["[h1   ] h1 0 a b", "[host2] host2 1 a b"]


def test_the_first_cause_is_found_across_hosts(request_for, tmp_path, fake_ssh, capfd):
    script = tmp_path / "t.py"
    script.write_text(
        "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('mine')\ntime.sleep(60)"
    )
    made = plan(request_for, script, hosts="h1,h2", report="r.json", grace_period_s="5")
    assert SSHLauncher().run(made) == 1
    # The last: the launcher on h2 may have said what it saw before it was ended.
    told = capfd.readouterr().err.rpartition("error: ")[2].splitlines()
    assert told[0].startswith("Rank 1 on h2 failed first: it ended with exit code 1: ValueError: mine")
    assert told[1] == "  Rank 0 only died of it."
    assert json.loads((tmp_path / "r.json").read_text())["first_failure"]["host"] == "h2"


@pytest.mark.parametrize("hosts", ["lost1,lost2", "h1,lost2"])
def test_a_host_whose_connection_is_lost_has_failed(request_for, tmp_path, fake_ssh, capfd, hosts):
    script = tmp_path / "t.py"
    script.write_text("import time; time.sleep(60)")
    made = plan(request_for, script, hosts=hosts, num_processes="4", report="r.json", grace_period_s="5")
    assert SSHLauncher().run(made) == 255
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["outcome"], report["exit_code"]) == ("failed", 255)
    assert report["first_failure"]["host"].startswith("lost")
    assert report["first_failure"]["last_lines"] == ["client_loop: send disconnect: Broken pipe"]
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1, 2, 3]
    assert "The connection to lost2 ended with exit code 255" in capfd.readouterr().err


def test_a_host_that_cannot_be_reached_ends_it_before_it_begins(request_for, tmp_path, fake_ssh):
    script = tmp_path / "t.py"
    script.write_text("open('started', 'w')")
    with pytest.raises(LaunchError, match="Nothing was started, .*\n  far2: cannot be reached: no route"):
        SSHLauncher().run(plan(request_for, script, hosts="h1,far2"))
    assert not (tmp_path / "started").exists()


def test_hosts_start_again_together_and_keep_prefixed_output_in_files(request_for, tmp_path, fake_ssh, capfd):
    script = tmp_path / "t.py"
    script.write_text(
        "import os, sys\nattempt = os.environ['TORCHELASTIC_RESTART_COUNT']\n"
        "print('attempt', attempt, os.environ['TORCHELASTIC_MAX_RESTARTS'], os.environ['ROLE_NAME'])\n"
        "sys.exit(3 if attempt == '0' and os.environ['RANK'] == '1' else 0)"
    )
    flags = {"prefix": "true", "show_ranks": "1", "log_dir": "logs", "role": "actor", "max_restarts": "1"}
    assert SSHLauncher().run(plan(request_for, script, hosts="h1,h2", **flags)) == 0
    out, err = capfd.readouterr()
    assert "[h2] [rank1] attempt 1 1 actor" in out.splitlines()
    assert "[h1]" not in out
    assert "All ranks start again (1 of 1)." in err
    kept = {path.parent.parent.name: path.read_text() for path in tmp_path.glob("logs/*/*/0/stdout.log")}
    assert kept["attempt_1"] == "attempt 1 1 actor\n"
    assert len([*tmp_path.glob("logs/*/attempt_1/0/stdout.log")]) == 2


# Each host answers once all have the question.
PATIENT_SSH = """#!/bin/sh
read question
touch "$MEETING/$$"
for _ in 1 2 3 4 5 6 7 8 9 10; do
    [ $(ls "$MEETING" | wc -l) = 5 ] && echo "$ANSWER" && exit 0
    sleep 0.3
done
exit 3
"""


def test_all_hosts_are_queried_at_once(tmp_path, fake_ssh, monkeypatch):
    (tmp_path / "bin" / "ssh").write_text(PATIENT_SSH)
    (tmp_path / "meeting").mkdir()
    monkeypatch.setenv("MEETING", str(tmp_path / "meeting"))
    numbers = {"free_port": 1, "num_accelerators": 0}
    answer = {"directory": None, "script": None, "python": "3.11", "packages": {}, **numbers}
    monkeypatch.setenv("ANSWER", json.dumps(answer))
    answers = check_hosts(
        [Host(f"h{number}") for number in range(5)],
        options=(),
        interpreter=("python",),
        cwd=Path("/srv"),
        script=None,
        is_compared=False,
    )
    assert answers == 5 * [answer]


def test_hosts_that_cannot_be_reached_have_no_other_script(tmp_path, shell_as_ssh, monkeypatch, capfd):
    monkeypatch.setenv("ANSWER", "exit 255")
    with pytest.raises(LaunchError, match="far1: cannot be reached"):
        check_hosts([Host("far1")], options=(), interpreter=(sys.executable,), cwd=tmp_path, script="t.py")
    assert "is another than on the hosts" not in capfd.readouterr().err


def test_what_differs_is_named_and_distinguished_by_whether_it_breaks_a_run(tmp_path):
    (tmp_path / "t.py").write_text("pass")
    here = fingerprint(str(tmp_path), "t.py")
    assert differences(here, here) == ([], [])
    packages = {**here["packages"], "pytest": "0.1", "torch": "1.0"}
    assert packages.pop("psutil")
    breaking, small = differences(here, here | {"python": "2.7.1", "packages": packages, "script": "other"})
    assert breaking[:2] == [f"Python is 2.7.1 instead of {here['python']}", "the script is another"]
    assert breaking[2:] == [f"`torch` is 1.0 instead of {here['packages']['torch']}"]
    assert small == [
        f"`psutil` is missing instead of {here['packages']['psutil']}",
        f"`pytest` is 0.1 instead of {here['packages']['pytest']}",
    ]
    patch = ".".join(here["python"].split(".")[:2]) + ".99"
    assert differences(here, here | {"python": patch}) == (
        [],
        [f"Python is {patch} instead of {here['python']}"],
    )


def test_what_keeps_a_host_from_running_ranks_is_named(tmp_path):
    (tmp_path / "t.py").write_text("pass")
    there = fingerprint(str(tmp_path), "t.py")

    def wrong(**other):
        return faults(there | other, cwd="/srv", launcher=__version__)

    assert wrong() == wrong(script="") == []
    assert wrong(directory=None, script=None) == ["the directory `/srv` is missing"]
    assert wrong(script=None) == ["the script is missing"]
    assert wrong(packages={}) == [f"`accel-launch` is missing instead of {__version__}, as here"]


def test_a_package_that_is_removed_by_half_is_passed_over(tmp_path, monkeypatch):
    (tmp_path / "gone-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "gone" not in fingerprint(str(tmp_path), None)["packages"]


def test_hosts_that_differ_from_each_other_are_refused_unless_nothing_is_compared(
    request_for, tmp_path, fake_ssh, monkeypatch, capfd
):
    script = tmp_path / "t.py"
    script.write_text("print('ran')")
    other = tmp_path / "other" / "torch-0.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.1\n")
    monkeypatch.setenv("OTHER_HOST", "h2")
    monkeypatch.setenv("OTHER_PYTHONPATH", f"{other.parent}:{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(LaunchError, match="h2: `torch` is 0.1 instead of "):
        SSHLauncher().run(plan(request_for, script, hosts="h1,h2"))
    assert SSHLauncher().run(plan(request_for, script, hosts="h1,h2", no_preflight="true")) == 0
    assert capfd.readouterr().out.count("ran") == 2
    # This machine only types: that it differs from the one that runs ranks is no one's concern.
    assert SSHLauncher().run(plan(request_for, script, hosts="h2")) == 0
    assert capfd.readouterr().err == ""


def test_libraries_variables_reach_the_hosts_through_the_connection_and_the_plan_hides_them(
    request_for, tmp_path, fake_ssh, capfd
):
    script = tmp_path / "t.py"
    script.write_text(
        "import os\nprint(*(os.environ.get(n) for n in ('HF_TOKEN', 'NCCL_SOCKET_IFNAME', 'MASTER_ADDR', 'OTHER')))"
    )
    environ = {"HF_TOKEN": "hush", "NCCL_SOCKET_IFNAME": "eth7", "MASTER_ADDR": "10.9.9.9", "OTHER": "x"}
    made = plan(request_for, script, hosts="h1", environ=environ)
    assert "hush" not in made.describe() + json.dumps(made.to_dict()) + repr(made)
    assert SSHLauncher().run(made) == 0
    assert capfd.readouterr().out == "[h1] hush eth7 h1 None\n"


def test_ranks_follow_the_accelerators_of_the_hosts(request_for, tmp_path):
    made = plan(request_for, tmp_path / "t.py", hosts="a,b", use_cpu="false")
    assert made.num_ranks == 0
    assert "one for each accelerator" in made.describe()
    full = _fitting(made, {"a": 2, "b": 2})
    assert [(process.host, process.environ["RANK"]) for process in full.processes] == [
        ("a", "0"),
        ("a", "1"),
        ("b", "2"),
        ("b", "3"),
    ]
    assert _fitting(made, {"a": 0, "b": 0}).num_ranks == 2
    with pytest.raises(ConfigError, match="names rank 4, but the ranks of this run go from 0 to 3"):
        _fitting(replace(made, shown_ranks=(0, 4)), {"a": 2, "b": 2})
    with pytest.raises(LaunchError, match=r"differ in their number of accelerators \(a: 2, b: 1\)"):
        _fitting(made, {"a": 2, "b": 1})
    with pytest.raises(LaunchError, match="to run 2 processes, but that is more"):
        _fitting(_with_ranks(made, 2), {"a": 2, "b": 1})


def test_threads_are_those_of_the_host(request_for, tmp_path, fake_ssh, monkeypatch, capfd):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    script = tmp_path / "t.py"
    script.write_text("import os; print(os.environ['OMP_NUM_THREADS'])")
    made = plan(request_for, script, hosts="h1")
    assert "OMP_NUM_THREADS" not in made.processes[0].environ
    assert SSHLauncher().run(made) == 0
    assert capfd.readouterr().out == f"[h1] {num_cpu_cores()}\n"


# What hosts answer instead of what they were asked, and the last that is shown of it.
ANSWERS = {
    "echo hello": "did not answer there: hello",
    "echo '[]'": "did not answer there: \\[\\]",
    "echo '{}'": "did not answer there: {}",
    "printf '%0100000d' 0 | tr 0 '['": "did not answer there: \\[\\[\\[",
    'echo \'{"python": 3, "directory": 1, "script": [], "packages": "", "free_port": "x"}\'': "did not answer there",
    "printf '\\033[2J\\007'": r"there: \\x1b\[2J\\x07",
    "head -c 100000000 /dev/zero": "wrote more than 1 MiB there",
    "printf '\\377\\376'; exit 3": "cannot be run there: ",
    "exit 0": "did not answer there: exit code 0",
}


@pytest.fixture
def shell_as_ssh(tmp_path, monkeypatch):
    """A stand-in for ssh that runs the text of a variable instead of the command."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\neval "$ANSWER"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    (tmp_path / "t.py").write_text("open('started', 'w')")


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_host_that_answers_nonsense_is_named(request_for, tmp_path, shell_as_ssh, monkeypatch, answer):
    monkeypatch.setenv("ANSWER", answer)
    with pytest.raises(LaunchError, match=rf"Nothing was started, .*\n  h1: .*{ANSWERS[answer]}") as caught:
        SSHLauncher().run(plan(request_for, tmp_path / "t.py", hosts="h1,h2"))
    assert str(caught.value).count("\n") == 2
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("message", ["no", "[]", '{"ranks": [1]}', '{"ranks": 1}', "[" * 2000])
def test_a_host_that_ends_with_nonsense_has_failed(
    request_for, tmp_path, shell_as_ssh, monkeypatch, capfd, message
):
    sound = {"interrupted_by": None, "num_memory_kills": 0}
    if message.startswith("{"):
        message = json.dumps(json.loads(message) | sound)
    (tmp_path / "message").write_bytes(
        MESSAGE_MARK + b"\n" + MESSAGE_MARK + message.encode() + b"\n\x1b[2J\n"
    )
    here = fingerprint(str(tmp_path), "t.py") | {"free_port": 1, "num_accelerators": 0}
    (tmp_path / "answer").write_text(f"Welcome!\n{json.dumps(here)}\nGoodbye!\n")
    ends = f"cat {tmp_path}/message >&2; exit 3"
    monkeypatch.setenv("ANSWER", f'case "$*" in *fingerprint*) cat {tmp_path}/answer;; *) {ends};; esac')
    assert SSHLauncher().run(plan(request_for, tmp_path / "t.py", hosts="h1,h2")) == 3
    assert r"The connection to h1 ended with exit code 3; it said: \x1b[2J" in capfd.readouterr().err
