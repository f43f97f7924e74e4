"""What the pods of a manifest do: its containers' commands, run here with the variables that Kubernetes sets."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from accel_launch.cli import main
from accel_launch.launchers.kubernetes import KubernetesLauncher
from accel_state.errors import ConfigError

REDUCE = """
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor(float(dist.get_rank() + 1))
dist.all_reduce(total)
print(sys.argv[1], os.environ["GROUP_RANK"], os.environ["RANK"], dist.get_world_size(), total.item())
dist.destroy_process_group()
"""
REFERENCE = re.compile(r"\$\$|\$\((\w+)\)")


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(REDUCE)
    return tmp_path


@pytest.fixture
def manifest(capsys):
    def make(*arguments: str) -> dict:
        flags = ("--launcher", "kubernetes", "--kubernetes_image", "image:1")
        assert main(["launch", "--dry-run", *flags, *arguments]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        return yaml.safe_load(captured.out)

    return make


def expanded(word: str, environ: dict[str, str]) -> str:
    """Do what the kubelet does to a word of a command."""
    return REFERENCE.sub(lambda found: "$" if found[0] == "$$" else environ.get(found[1], found[0]), word)


def pods_of(manifest: dict) -> list[tuple[dict, dict[str, str]]]:
    """Return the container of each pod and what the controller adds to its variables; all pods are this machine."""
    if manifest["kind"] == "JobSet":
        (replicated,) = manifest["spec"]["replicatedJobs"]
        job = replicated["template"]["spec"]
        (container,) = job["template"]["spec"]["containers"]
        index, address = container["env"][:2]
        assert index["valueFrom"]["fieldRef"]["fieldPath"].endswith(
            "['batch.kubernetes.io/job-completion-index']"
        )
        name, network = manifest["metadata"]["name"], manifest["spec"]["network"]
        assert address["value"] == f"{name}-{replicated['name']}-0-0.{network['subdomain']}"
        return [
            (container, {index["name"]: str(pod), "MASTER_ADDR": "127.0.0.1"})
            for pod in range(job["completions"])
        ]
    pods = []
    for replica in manifest["spec"]["pytorchReplicaSpecs"].values():
        (container,) = replica["template"]["spec"]["containers"]
        pods += [container] * replica["replicas"]
    return [(container, {"RANK": str(pod), "MASTER_ADDR": "127.0.0.1"}) for pod, container in enumerate(pods)]


@pytest.mark.engine("long")
@pytest.mark.parametrize("kind", ["jobset", "pytorchjob"])
def test_the_commands_of_two_pods_meet_and_reduce(manifest, kind, monkeypatch):
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    made = manifest(
        *("--kubernetes_kind", kind, "--cpu", "--num_processes", "2", "--num_machines", "2"),
        *("--main_process_port", str(port), "train.py", "$(RANK)"),
    )
    processes = []
    for container, environ in pods_of(made):
        command = [expanded(word, environ) for word in container["command"]]
        assert command[0] == "python3"
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        processes.append(subprocess.Popen([sys.executable, *command[1:]], stdout=subprocess.PIPE, text=True))
    # Before torch 2.11 gloo writes a line before it.
    said = [process.communicate()[0].splitlines()[-1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert said == ["$(RANK) 0 0 2 3.0", "$(RANK) 1 1 2 3.0"]


def test_the_manifest_is_written_to_a_file(workplace, capsys):
    flags = ("--launcher", "kubernetes", "--kubernetes_image", "image:1", "--cpu")
    assert main(["launch", *flags, "--kubernetes_manifest", "job.yaml", "train.py"]) == 0
    assert capsys.readouterr().out == f"Wrote {workplace / 'job.yaml'}\n"
    assert yaml.safe_load((workplace / "job.yaml").read_text())["kind"] == "JobSet"
    assert main(["launch", *flags, "--kubernetes_manifest", "no/job.yaml", "train.py"]) == 1
    assert "no/job.yaml` cannot be written: No such file or directory." in capsys.readouterr().err


def stand_in(folder: Path, text: str) -> None:
    program = folder / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


def test_the_manifest_goes_to_kubectl(workplace, capsys, monkeypatch):
    stand_in(workplace, 'cat > got.yaml; echo "jobset.jobset.x-k8s.io/$1 $2 $3"')
    monkeypatch.setenv("PATH", f"{workplace / 'bin'}:/usr/bin:/bin")
    flags = ("--launcher", "kubernetes", "--kubernetes_image", "image:1", "--cpu")
    assert main(["launch", *flags, "train.py"]) == 0
    assert capsys.readouterr().out == "jobset.jobset.x-k8s.io/create --filename -\n"
    assert yaml.safe_load((workplace / "got.yaml").read_text())["metadata"] == {"name": "accel-train"}


def test_what_kubectl_refuses_is_reported(workplace, capsys, monkeypatch):
    stand_in(workplace, 'echo "Error: jobsets.jobset.x-k8s.io \\"accel-train\\" already exists" >&2; exit 1')
    monkeypatch.setenv("PATH", f"{workplace / 'bin'}:/usr/bin:/bin")
    flags = ("--launcher", "kubernetes", "--kubernetes_image", "image:1", "--cpu")
    assert main(["launch", *flags, "train.py"]) == 1
    expected = (
        'error: `kubectl` refused the job: Error: jobsets.jobset.x-k8s.io "accel-train" already exists\n'
    )
    assert capsys.readouterr().err == expected


def test_without_kubectl_a_hint_is_given(capsys, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert shutil.which("kubectl") is None
    flags = ("--launcher", "kubernetes", "--kubernetes_image", "image:1", "--cpu")
    assert main(["launch", *flags, "train.py"]) == 1
    assert (
        "needs the program `kubectl`, which is not installed here. Print the manifest with `--dry-run`"
        in (capsys.readouterr().err)
    )


IMAGE = {"launcher": "kubernetes", "kubernetes_image": "image:1"}
ON_CPU = IMAGE | {"use_cpu": "true"}


def manifest_of(request) -> dict:
    return yaml.safe_load(KubernetesLauncher().plan(request).document)


def container_of(request) -> dict:
    """Return the container of the pods, without the variables that only a JobSet's pods need."""
    container, added = pods_of(manifest_of(request))[0]
    return container | {"env": [each for each in container["env"] if each["name"] not in added]}


def test_each_pod_starts_the_ranks_of_one_machine(request_for):
    flags = {"num_processes": "16", "num_machines": "2", "mixed_precision": "bf16"}
    request = request_for(flags=IMAGE | flags)
    container = container_of(request)
    assert tuple(container["command"]) == (
        *("python3", "-m", "accel_launch", "launch", "--num_processes=16", "--num_machines=2"),
        *("--machine_rank=$(MACHINE_RANK)", "--main_process_ip=$(MASTER_ADDR)", "--main_process_port=29500"),
        *("--mixed_precision=bf16", "--", "train.py"),
    )
    assert container["resources"] == {key: {"nvidia.com/gpu": "8"} for key in ("requests", "limits")}
    assert (len(pods_of(manifest_of(request))), KubernetesLauncher().plan(request).num_ranks) == (2, 16)


def test_one_pod_needs_no_meeting(request_for):
    command = container_of(request_for(flags=IMAGE | {"num_processes": "8"}))["command"]
    assert [word for word in command if "$(" in word] == []


def test_what_config_and_environment_set_here_is_set_there(request_for):
    request = request_for(
        flags=ON_CPU,
        config={"fsdp_config.fsdp_ignored_modules": "a.$b", "distributed_type": "FSDP"},
        environ={
            "FSDP_VERSION": "2",
            "CUDA_VISIBLE_DEVICES": "0",
            "NCCL_DEBUG": "INFO",
            "PATH": "/bin",
            "X": "1",
        },
    )
    container = container_of(request)
    assert "--fsdp_version=2" in container["command"]
    assert container["env"] == [
        {"name": "FSDP_IGNORED_MODULES", "value": "a.$$b"}, {"name": "NCCL_DEBUG", "value": "INFO"},
    ]  # fmt: skip


def test_a_dollar_stays_a_dollar(request_for):
    assert container_of(request_for("train.py", "$(RANK)", flags=ON_CPU))["command"][-1] == "$$(RANK)"


@pytest.mark.parametrize(
    ("flags", "gpus", "processes"),
    [
        ({"num_processes": "4"}, "4", 4),
        ({"kubernetes_gpus_per_node": "8", "num_machines": "2"}, "8", 16),
        ({"kubernetes_gpus_per_node": "8", "num_processes": "2"}, "8", 2),
        ({"use_cpu": "true", "num_processes": "4"}, None, 4),
        ({"use_cpu": "true"}, None, 1),
    ],
)
def test_how_many_gpus_and_processes_a_pod_has(request_for, flags, gpus, processes):
    request = request_for(flags=IMAGE | flags, gpus=("0", "1", "2"))
    limits = container_of(request).get("resources", {}).get("limits", {})
    assert (limits.get("nvidia.com/gpu"), KubernetesLauncher().plan(request).num_ranks) == (gpus, processes)


@pytest.mark.parametrize(
    ("script", "name"),
    [("Train_2.py", "accel-train-2"), ("a/" + "b" * 60 + ".py", "accel-" + "b" * 34), ("x-.py", "accel-x")],
)
def test_the_name_follows_from_the_script(request_for, script, name):
    assert manifest_of(request_for(script, flags=ON_CPU))["metadata"] == {"name": name}


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"kubernetes_image": ""}, "needs `--kubernetes_image`"),
        ({}, "Give `--num_processes`"),
        (
            {"num_processes": "4", "kubernetes_gpus_per_node": "2"},
            "asks for 4 in each pod, but `--kubernetes_gpus_per_node` is 2",
        ),
        ({"use_cpu": "true", "kubernetes_job_name": "a" * 41}, "at most 40 characters"),
    ],
)
def test_what_cannot_be_run_is_refused(request_for, flags, problem):
    with pytest.raises(ConfigError, match=problem):
        KubernetesLauncher().plan(request_for(flags=IMAGE | flags))


def test_a_variable_from_a_secret_is_only_referred_to(request_for):
    flags = ON_CPU | {"kubernetes_secrets": "NCCL_DEBUG=store:level,HF_TOKEN=hub:token"}
    environ = {"NCCL_DEBUG": "INFO", "HF_TOKEN": "hf_secret"}
    assert container_of(request_for(flags=flags, environ=environ))["env"] == [
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
        {"name": "NCCL_DEBUG", "valueFrom": {"secretKeyRef": {"name": "store", "key": "level"}}},
    ]


def test_a_manifest_repeats_what_occurs_twice(request_for):
    flags = IMAGE | {"kubernetes_kind": "pytorchjob", "num_machines": "2", "num_processes": "2"}
    assert not set(KubernetesLauncher().plan(request_for(flags=flags)).document) & {"&", "*"}
