from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from accel_launch.launchers.slurm import SLURMLauncher, batch_script
from accel_launch.launchers.srun import SRunLauncher
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_launch.request import flags_of_task
from accel_state.errors import ConfigError, LaunchError, NotAvailableError

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
}


RANKS = {"num_processes": "1", "num_machines": "1"}


@pytest.mark.parametrize(
    ("change", "flags"),
    [
        (
            {},
            {
                "num_machines": "2",
                "machine_rank": "1",
                "master_addr": "gpu03",
                "master_port": str(15000 + 7 * 31),
            },
        ),
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, RANKS),
        ({"SLURM_STEP_ID": ""}, {}),
        ({"TORCHELASTIC_RUN_ID": "inner"}, {}),
    ],
)
def test_a_task_of_srun_knows_its_machines(change, flags):
    assert flags_of_task(STEP | change, {}) == flags


def script(request_for, *command, kind="script", **flags) -> list[str]:
    request = request_for(*command, flags={"slurm": "true"} | flags, kind=kind)
    assert SLURMLauncher().accepts(request)
    return batch_script(request).splitlines()


def test_the_script_requests_the_nodes_and_starts_the_same_launch(request_for):
    flags = {"num_machines": "2", "num_processes": "8", "mixed_precision": "bf16", "use_cpu": "true"}
    lines = script(request_for, "my train.py", "--lr", "$HOME", **flags)
    assert lines[:5] == [
        "#!/bin/bash",
        "#SBATCH --job-name='my train.py'",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --chdir=/srv",
    ]
    words = shlex.split(lines[-1])
    assert words[:5] == ["exec", "python", "-m", "accel_launch", "launch"]
    assert set(words[7:-4]) == {"--cpu", "--num_processes=8", "--mixed_precision=bf16"}
    assert words[-4:] == ["--", "my train.py", "--lr", "$HOME"]


def test_arrays_more_options_and_requeueing(request_for):
    flags = {"slurm_array": "0-9%2", "slurm_requeue": "true", "slurm_options": "--time=1:00 --comment='a b'"}
    lines = script(request_for, **flags)
    for line in ("--array=0-9%2", "--requeue", "--signal=B:TERM@60", "--time=1:00", "'--comment=a b'"):
        assert f"#SBATCH {line}" in lines
    assert "trap end TERM" in lines
    assert shlex.split(lines[-6])[:4] == ["python", "-m", "accel_launch", "launch"]


def test_the_signal_comes_early_enough_for_the_grace_period(request_for):
    assert "#SBATCH --signal=B:TERM@330" in script(request_for, slurm_requeue="true", grace_period_s="299.5")


@pytest.mark.skipif(shutil.which("bash") is None, reason="the script is for bash")
@pytest.mark.parametrize(
    ("code", "variables", "told", "exit_code"),
    [
        (0, {}, None, 0),
        (3, {}, None, 3),
        (75, {}, "requeue 7\n", 143),
        (75, {"SLURM_ARRAY_JOB_ID": "6", "SLURM_ARRAY_TASK_ID": "2"}, "requeue 6_2\n", 143),
    ],
)
def test_a_script_that_asks_to_be_run_again_is_put_into_the_queue(
    request_for, tmp_path, code, variables, told, exit_code
):
    for name, line in (("python", f"exit {code}"), ("scontrol", f'echo "$@" > {tmp_path}/told')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [shutil.which("bash"), "-c", "\n".join(script(request_for, slurm_requeue="true"))],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"} | variables,
        timeout=30,
        check=False,
    )
    assert done.returncode == exit_code
    assert ((tmp_path / "told").read_text() if (tmp_path / "told").exists() else None) == told


@pytest.mark.parametrize("character", ["\n", "\r", "\x1b"])
@pytest.mark.parametrize(
    ("where", "what"),
    [("folder", "the working directory"), ("script", "the script's name"), ("options", "`--slurm_options`")],
)
def test_no_line_of_the_job_is_written_by_a_name(request_for, character, where, what):
    bad = f"d{character}touch RAN{character}#"
    flags = {"slurm": "true"} | ({"slurm_options": f"'--comment={bad}'"} if where == "options" else {})
    request = request_for(f"{bad}.py" if where == "script" else "train.py", flags=flags)
    request = replace(request, cwd=Path("/srv", bad)) if where == "folder" else request
    with pytest.raises(
        ConfigError, match=f"batch script has {what} in it, so a control character, such as .* Take it out"
    ):
        batch_script(request)


def test_an_array_that_is_none_is_refused(request_for):
    with pytest.raises(ConfigError, match="`--slurm_array` is `0-9; rm`"):
        script(request_for, slurm_array="0-9; rm")


def test_the_shell_of_a_job_starts_a_launch_on_each_node(request_for):
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}
    request = request_for("train.py", environ=environ, flags={"num_processes": "8"}, kind="module")
    plan = SRunLauncher().plan(request)
    assert plan.num_ranks == 8
    argv = plan.processes[0].argv
    assert argv[:4] == ("srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1")
    assert argv[4:7] == ("--input=all", "--kill-on-bad-exit=1", "--wait=40")
    assert argv[7:] == (
        *("python", "-P", "-m", "accel_launch.srun_task", "33.0"),
        *("python", "-m", "accel_launch", "launch", "--config_file", "/srv/config.yaml"),
        *("--num_processes=8", "-m", "--", "train.py"),
    )


@pytest.mark.parametrize(
    ("variables", "flags"),
    [
        ({"SLURM_JOB_CPUS_PER_NODE": "64(x2),32"}, ["--cpus-per-task=32"]),
        ({"SLURM_JOB_CPUS_PER_NODE": "8", "SRUN_CPUS_PER_TASK": "4"}, []),
        ({}, []),
    ],
)
def test_a_launch_has_all_cpus_of_its_node(request_for, variables, flags):
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3"} | variables
    (srun,) = SRunLauncher().plan(request_for(environ=environ)).processes
    assert [word for word in srun.argv if word.startswith("--cpus-per-task")] == flags


@pytest.fixture
def sbatch(tmp_path, monkeypatch):
    def install(body: str) -> None:
        program = tmp_path / "sbatch"
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    return install


PLAN = LaunchPlan(
    "slurm",
    (ProcessPlan(("sbatch", "--parsable"), Path("/")),),
    num_ranks=1,
    options={"script": "#!/bin/bash\n"},
)


def test_the_script_is_handed_to_sbatch(sbatch, tmp_path, capsys):
    sbatch(f'cat > {tmp_path}/seen; echo "42;cluster"')
    assert SLURMLauncher().run(PLAN) == 0
    assert (tmp_path / "seen").read_text() == "#!/bin/bash\n"
    assert capsys.readouterr().out == "Submitted batch job 42\n"


def test_what_sbatch_refuses_is_reported(sbatch):
    sbatch('echo "sbatch: error: no such partition" >&2; exit 1')
    with pytest.raises(LaunchError, match="refused the job: sbatch: error: no such partition"):
        SLURMLauncher().run(PLAN)


def test_without_slurm_a_hint_is_given(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotAvailableError, match="see the script with `--dry-run`"):
        SLURMLauncher().run(PLAN)
