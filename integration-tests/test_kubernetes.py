"""Manifests of launches on Kubernetes, read by the models that Kubeflow publishes of its resources.

What a model does not know it leaves out, and what it lacks it refuses: so a manifest that comes back unchanged has no
field of a wrong name, place or kind. `kubectl` is of no use here: even with `--dry-run=client` it asks a cluster which
resources there are.
"""

from __future__ import annotations

import copy
import json
import shlex
from types import SimpleNamespace

import pytest
import yaml
from documented import DOCS, blocks, commands

from accel_launch.cli import main

pytestmark = pytest.mark.engine("kubernetes")

SIZES = {
    "small": ("--cpu",),
    "full": (
        *("--num_machines", "2", "--num_processes", "16", "--mixed_precision", "bf16", "--use_fsdp"),
        *("--kubernetes_namespace", "team", "--kubernetes_cpu", "500m", "--kubernetes_memory", "64Gi"),
        *("--kubernetes_secrets", "HF_TOKEN=hub:token", "--kubernetes_backoff_limit", "3"),
        *("--kubernetes_working_dir", "/app", "--grace_period_s", "120"),
    ),
}


def client_read_back(manifest: dict, model: str) -> dict:
    import kubernetes.client.models
    from kubeflow.training import models

    for name, found in vars(models).items():
        if name.startswith("KubeflowOrg"):
            setattr(kubernetes.client.models, name, found)  # where the client looks for them
    client = kubernetes.client.ApiClient()
    answer = SimpleNamespace(data=json.dumps(manifest))
    return client.sanitize_for_serialization(client.deserialize(answer, model))


def jobset_read_back(manifest: dict) -> dict:
    from kubeflow_trainer_api.models import JobsetV1alpha2JobSet

    read = JobsetV1alpha2JobSet.from_dict(manifest).to_dict()
    for job, given in zip(read["spec"]["replicatedJobs"], manifest["spec"]["replicatedJobs"], strict=True):
        # Kubeflow's models require less of a pod than those of Kubernetes' own client.
        assert client_read_back(given["template"], "V1JobTemplateSpec") == job["template"]
    return read


def pytorchjob_read_back(manifest: dict) -> dict:
    return client_read_back(manifest, "KubeflowOrgV1PyTorchJob")


READ_BACK = {"jobset": jobset_read_back, "pytorchjob": pytorchjob_read_back}


@pytest.fixture
def launch(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()

    def plan(*words: str) -> dict:
        assert main(["launch", "--dry-run", *words]) == 0
        return yaml.safe_load(capsys.readouterr().out)

    return plan


@pytest.fixture
def manifest(launch):
    def make(*flags: str) -> dict:
        return launch("--launcher", "kubernetes", "--kubernetes_image", "image:1", *flags, "train.py")

    return make


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", READ_BACK)
def test_a_manifest_holds_what_its_model_knows_and_nothing_else(manifest, kind, size):
    made = manifest("--kubernetes_kind", kind, *SIZES[size])
    assert READ_BACK[kind](made) == made


def launches_of_the_guide() -> list[list[str]]:
    page = DOCS / "launch" / "clusters.md"
    texts = [text for block in blocks(page, "bash") for _, text in commands(block)]
    return [shlex.split(text) for text in texts if "--launcher kubernetes" in text]


@pytest.mark.parametrize("words", launches_of_the_guide(), ids=shlex.join)
@pytest.mark.parametrize("kind", READ_BACK)
def test_what_the_guide_launches_is_what_the_models_know(launch, kind, words):
    assert words[:2] == ["accel", "launch"]
    made = launch("--kubernetes_kind", kind, *words[2:])
    assert READ_BACK[kind](made) == made


def container_of(manifest: dict) -> dict:
    if manifest["kind"] == "JobSet":
        job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
        return job["template"]["spec"]["containers"][0]
    return manifest["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("kind", READ_BACK)
def test_the_models_report_a_wrong_manifest(manifest, kind):
    made = manifest("--kubernetes_kind", kind, *SIZES["full"])
    misspelt = copy.deepcopy(made)
    misspelt["spec"]["suspended"] = True
    assert READ_BACK[kind](misspelt) != misspelt
    misplaced = copy.deepcopy(made)
    container_of(misplaced)["workingDirectory"] = "/app"
    assert READ_BACK[kind](misplaced) != misplaced
    nameless = copy.deepcopy(made)
    del container_of(nameless)["name"]
    with pytest.raises(ValueError, match="name"):
        READ_BACK[kind](nameless)
