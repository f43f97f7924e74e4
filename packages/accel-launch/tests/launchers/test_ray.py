from __future__ import annotations

import json
from pathlib import Path

import pytest

from accel_launch.cli import main
from accel_launch.launchers.ray import RayLauncher
from accel_state.errors import ConfigError

RAY = {"launcher": "ray", "num_processes": "2"}


def plan(request_for, flags=None, **rest):
    return RayLauncher().plan(request_for(flags=RAY | (flags or {}), **rest))


def test_each_rank_is_an_actor_with_a_cpu_and_a_gpu(request_for):
    made = plan(request_for, {"ray_address": "10.0.0.1:6379", "ray_resources": "A100=0.5"})
    assert json.loads(made.options["resources"]) == {"CPU": 1, "GPU": 1, "A100": 0.5}
    assert [process.rank for process in made.processes] == [0, 1]
    assert made.processes[1].environ == {"OMP_NUM_THREADS": "1", "RANK": "1", "WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("flags", "gpus", "has_gpu"),
    [
        ({}, (), False),
        ({}, ("0", "1"), True),
        ({"use_cpu": "true"}, ("0", "1"), False),
        ({"use_cpu": "true", "ray_address": "a:1"}, (), False),
        ({"ray_address": "a:1"}, (), True),
    ],
)
def test_ranks_have_gpus_unless_they_run_on_the_cpu(request_for, flags, gpus, has_gpu):
    resources = json.loads(plan(request_for, flags, gpus=gpus).options["resources"])
    assert ("GPU" in resources) is has_gpu


def test_the_python_of_the_nodes_runs_the_script(request_for):
    made = plan(request_for, interpreter=("/here/python", "-O"))
    assert made.processes[0].argv == ("{python}", "-O", "-u", "train.py")


def test_variables_of_the_run_go_along_and_paths_of_this_machine_do_not(request_for):
    environ = {
        "NCCL_DEBUG": "INFO",
        "NCCL_ALGO": "Ring",
        "PATH": "/bin",
        "HF_TOKEN": "hf_x",
        "RAY_ADDRESS": "a:1",
        "ACCEL_LAUNCHER": "ray",
    }
    made = plan(request_for, {"mixed_precision": "bf16", "ray_cpus_per_process": "4"}, environ=environ)
    assert made.processes[0].environ == {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "NCCL_ALGO": "Ring",
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "4",
        "RANK": "0",
        "WORLD_SIZE": "2",
    }
    assert made.options["address"] == "a:1"


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"ray_address": "ray://head:10001"}, "through Ray's client. Give the address of the head node"),
        ({"ray_address": "a:1", "num_processes": ""}, "needs `--num_processes`"),
        ({"ray_resources": "a=b"}, "`--ray_resources` has `a=b`, but an amount must be a number"),
        ({"ray_runtime_env": "missing.yaml"}, "missing.yaml` cannot be read: No such file"),
        ({"ray_runtime_env": "list.yaml"}, "list.yaml` must hold `key: value` lines"),
        ({"ray_runtime_env": "broken.yaml"}, "broken.yaml` is not valid YAML"),
    ],
)
def test_what_cannot_be_run_is_refused(request_for, tmp_path, flags, problem):
    (tmp_path / "list.yaml").write_text("- a\n")
    (tmp_path / "broken.yaml").write_text("a: [\n")
    paths = {name: str(tmp_path / text) for name, text in flags.items() if name == "ray_runtime_env"}
    with pytest.raises(ConfigError, match=problem):
        plan(request_for, flags | paths)


def test_the_runtime_env_is_handed_on_and_not_shown(request_for, tmp_path):
    file = tmp_path / "env.yaml"
    file.write_text("working_dir: code\nenv_vars: {TOKEN: secret}\n")
    made = plan(request_for, {"ray_runtime_env": str(file)})
    assert json.loads(made.secrets["runtime_env"])["env_vars"] == {"TOKEN": "secret"}
    assert "secret" not in json.dumps(made.to_dict())
    assert made.processes[0].cwd == Path("{cwd}")


def test_without_ray_a_hint_is_given(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("accel_launch.launchers.ray.find_spec", lambda name: None)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "train.py").touch()
    assert main(["launch", "--launcher", "ray", "--cpu", str(tmp_path / "train.py")]) == 1
    assert "needs the package `ray`, which is not installed. Run `pip install ray`." in (
        capsys.readouterr().err
    )
