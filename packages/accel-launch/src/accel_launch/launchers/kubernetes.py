"""A job on Kubernetes: a JobSet or PyTorchJob, printed with ``--dry-run``, or handed to ``kubectl``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from accel_launch.launchers.machines import DEFAULT_PORT
from accel_launch.launchers.relaunch import forwarded_to_images, public_variables, relaunch_command
from accel_launch.launchers.selection import BuiltInLauncher
from accel_launch.launchers.submission import submit
from accel_launch.messages import show
from accel_launch.options import OPTIONS
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_launch.request import LaunchRequest
from accel_state.errors import ConfigError, LaunchError

Manifest = dict[str, Any]

# The Python of the image.
_COMMAND = ("python3", "-m", "accel_launch", "launch")
# Set for the pods, or only valid on this machine.
_LEFT_OUT = frozenset(
    {"num_processes", "num_machines", "machine_rank", "master_addr", "master_port", "rdzv_backend"}
    | {"same_network", "gpu_ids", "cpu_affinity", "report", "aws_access_key_id", "aws_secret_access_key"}
)
# In addition to the time that the ranks have: for the launcher in the pod to report how they ended.
_SLACK_S = 5
# Pods are called `NAME-pods-0-INDEX-xxxxx`, and no label may be longer than 63 characters.
_LONGEST_NAME = 40


class KubernetesLauncher(BuiltInLauncher):
    """Makes a job with one pod for each machine; in each, ``accel launch`` starts its ranks."""

    name: ClassVar[str] = "kubernetes"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        if not request.value("kubernetes_image"):
            raise ConfigError(
                "`--launcher kubernetes` needs `--kubernetes_image`, an image with Python, accel-launch and the script."
            )
        index_variable, manifest_of = _KINDS[request.value("kubernetes_kind")]
        num_gpus, num_local = _size_of_pods(request)
        command = _command(request, num_local, index_variable=index_variable)
        pod = _pod(request, num_gpus=num_gpus, command=command)
        # Through JSON, so that what occurs twice is written twice: a reader need not know YAML's references.
        manifest = json.loads(json.dumps(manifest_of(request, _metadata(request), pod)))
        file: str | None = request.value("kubernetes_manifest")
        import yaml

        return LaunchPlan(
            self.name,
            # `create`, since `apply` would start nothing where a job of this name is already done.
            (ProcessPlan(("kubectl", "create", "--filename", "-"), request.cwd),),
            num_ranks=num_local * request.num_machines,
            grace_period_s=request.value("grace_period_s"),
            options={} if file is None else {"file": str(request.cwd / file)},
            document=yaml.safe_dump(manifest, sort_keys=False, width=1000),
        )

    def run(self, plan: LaunchPlan) -> int:
        assert plan.document is not None
        if "file" in plan.options:
            return _write(plan.document, Path(plan.options["file"]))
        (kubectl,) = plan.processes
        answer = submit(
            kubectl,
            plan.document,
            asked_by="--launcher kubernetes",
            otherwise="Print the manifest with `--dry-run`, or write it with `--kubernetes_manifest FILE`, and create "
            "it where `kubectl` is.",
        )
        show(answer)
        return 0


def _write(document: str, file: Path) -> int:
    try:
        file.write_text(document, encoding="utf-8")
    except OSError as error:
        raise LaunchError(
            f"The manifest `{file}` cannot be written: {error.strerror}. Name another file."
        ) from error
    show(f"Wrote {file}")
    return 0


def _jobset(request: LaunchRequest, metadata: Manifest, pod: Manifest) -> Manifest:
    """Return a JobSet of one indexed job; it brings a headless service, by which the pods find the first."""
    name = metadata["name"]
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    (container,) = pod["containers"]
    container["env"] = [
        {"name": "MACHINE_RANK", "valueFrom": {"fieldRef": {"fieldPath": index}}},
        {"name": "MASTER_ADDR", "value": f"{name}-pods-0-0.{name}"},
        *container["env"],
    ]
    job = {
        "completions": request.num_machines,
        "parallelism": request.num_machines,
        "completionMode": "Indexed",
        "backoffLimit": 0,  # a run does not go on without one of its machines: the whole set starts again
        "template": {"spec": pod},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": name},
            "failurePolicy": {"maxRestarts": request.value("kubernetes_backoff_limit")},
            "replicatedJobs": [{"name": "pods", "replicas": 1, "template": {"spec": job}}],
        },
    }


def _pytorchjob(request: LaunchRequest, metadata: Manifest, pod: Manifest) -> Manifest:
    """Return a PyTorchJob; the operator sets ``MASTER_ADDR`` and, as ``RANK``, the index of a pod."""
    limit: int = request.value("kubernetes_backoff_limit")
    del pod["restartPolicy"]  # the operator takes it from the replica
    (container,) = pod["containers"]
    # The names that the operator looks for.
    container |= {"name": "pytorch", "ports": [{"name": "pytorchjob-port", "containerPort": _port(request)}]}
    replica = {"restartPolicy": "OnFailure" if limit else "Never", "template": {"spec": pod}}
    counts = {"Master": 1, "Worker": request.num_machines - 1}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata,
        "spec": {
            "runPolicy": {"backoffLimit": limit, "cleanPodPolicy": "Running"},
            "pytorchReplicaSpecs": {
                name: {"replicas": count, **replica} for name, count in counts.items() if count
            },
        },
    }


# For each kind, the variable in which a pod finds its index, and what makes the manifest.
_KINDS: Mapping[str, tuple[str, Callable[[LaunchRequest, Manifest, Manifest], Manifest]]] = {
    "jobset": ("MACHINE_RANK", _jobset),
    "pytorchjob": ("RANK", _pytorchjob),
}


def _metadata(request: LaunchRequest) -> Manifest:
    asked: str | None = request.value("kubernetes_job_name")
    script = request.command[0].rpartition("/")[2].removesuffix(".py").lower()
    name = asked or f"accel-{re.sub('[^a-z0-9]+', '-', script)}"[:_LONGEST_NAME].strip("-")
    if len(name) > _LONGEST_NAME:
        raise ConfigError(
            f"`--kubernetes_job_name` is `{name}`, but it may have at most {_LONGEST_NAME} characters: the names of "
            "the pods begin with it. Choose a shorter name."
        )
    namespace: str | None = request.value("kubernetes_namespace")
    return {"name": name} | ({"namespace": namespace} if namespace else {})


def _pod(request: LaunchRequest, *, num_gpus: int, command: tuple[str, ...]) -> Manifest:
    directory: str | None = request.value("kubernetes_working_dir")
    sizes = {
        request.value("kubernetes_gpu_resource"): str(num_gpus) if num_gpus else None,
        "cpu": request.value("kubernetes_cpu"),
        "memory": request.value("kubernetes_memory"),
    }
    sizes = {name: size for name, size in sizes.items() if size}
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(request.value("grace_period_s")) + _SLACK_S,
        "containers": [
            {
                "name": "accel",
                "image": request.value("kubernetes_image"),
                "command": list(command),
                **({"workingDir": directory} if directory else {}),
                "env": _environ(request),
                **({"resources": {"requests": sizes, "limits": sizes}} if sizes else {}),
                # The default of 64 MB is too small for the workers of data loaders.
                "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],  # noqa: S108
            }
        ],
        "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}],
    }


def _size_of_pods(request: LaunchRequest) -> tuple[int, int]:
    """Return how many GPUs and how many processes each pod has.

    Raises:
        ConfigError: If neither is set, or the processes outnumber the GPUs.
    """
    asked: int | None = request.value("num_processes")
    gpus: int | None = request.value("kubernetes_gpus_per_node")
    num_local = None if asked is None else asked // request.num_machines
    if request.value("use_cpu"):
        return gpus or 0, num_local or 1
    if gpus is None and num_local is None:
        raise ConfigError(
            "The size of the pods is not known on this machine. Give `--num_processes` (of all machines) or "
            "`--kubernetes_gpus_per_node`, or `--cpu`."
        )
    if gpus is not None and num_local is not None and num_local > gpus:
        raise ConfigError(
            f"`--num_processes` asks for {num_local} in each pod, but `--kubernetes_gpus_per_node` is {gpus}. "
            "Give one of them, or the same number."
        )
    return (num_local or 0) if gpus is None else gpus, num_local or max(1, gpus or 0)


def _port(request: LaunchRequest) -> int:
    return int(request.value("master_port") or DEFAULT_PORT)


def _command(request: LaunchRequest, num_local: int, *, index_variable: str) -> tuple[str, ...]:
    """Return the command of a pod: in a manifest, ``$(NAME)`` is the value of a variable, and ``$$`` a dollar sign."""
    words = relaunch_command(request, without=_LEFT_OUT, interpreter=_COMMAND[:1], is_self_contained=True)
    assert words[: len(_COMMAND)] == _COMMAND
    place: tuple[str, ...] = ()
    if request.num_machines > 1:
        place = (
            f"--machine_rank=$({index_variable})",
            "--main_process_ip=$(MASTER_ADDR)",
            f"--main_process_port={_port(request)}",
        )
    return (
        *_COMMAND,
        f"--num_processes={num_local * request.num_machines}",
        f"--num_machines={request.num_machines}",
        *place,
        *(word.replace("$", "$$") for word in words[len(_COMMAND) :]),
    )


def _environ(request: LaunchRequest) -> list[Manifest]:
    """Return the variables of a pod: what other machines get, settings without a flag, `--env`, and secrets."""
    given: str = request.value("kubernetes_secrets") or ""
    secrets = dict(part.split("=", 1) for part in given.split(",") if part)
    without_flag = {setting.variable for setting in OPTIONS if not setting.flag}
    values = forwarded_to_images(request.machine.environ)
    values |= {name: value for name, value in request.environ().items() if name in without_flag}
    values |= public_variables(
        {name: value for name, value in request.named_variables().items() if name not in secrets},
        where="everybody who may read the job would see its value",
        otherwise="Keep it in a secret of the cluster and name that with `--kubernetes_secrets`.",
    )
    return [
        *(
            {"name": name, "value": value.replace("$", "$$")}
            for name, value in sorted(values.items())
            if name not in secrets
        ),
        *(
            {
                "name": name,
                "valueFrom": {"secretKeyRef": dict(zip(("name", "key"), source.split(":"), strict=True))},
            }
            for name, source in sorted(secrets.items())
        ),
    ]
