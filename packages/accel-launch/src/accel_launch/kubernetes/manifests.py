"""A workload as a manifest: a JobSet, or a PyTorchJob of Kubeflow's training operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from accel_launch.kubernetes.workload import Workload

Manifest = dict[str, Any]

_PODS = "pods"  # what the replicated job is called
_INDEX_VARIABLE = "MACHINE_RANK"
_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
# The names that the training operator looks for.
_PYTORCH_CONTAINER, _PYTORCH_PORT = "pytorch", "pytorchjob-port"


def jobset(workload: Workload) -> Manifest:
    """Return a JobSet of one indexed job; it brings a headless service, by which the pods find the first."""
    address = f"{workload.name}-{_PODS}-0-0.{workload.name}"
    variables: list[Manifest] = [
        {"name": _INDEX_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": _INDEX}}},
        {"name": "MASTER_ADDR", "value": address},
    ]
    job = {
        "completions": workload.num_pods,
        "parallelism": workload.num_pods,
        "completionMode": "Indexed",
        "backoffLimit": 0,  # a run does not go on without one of its machines: the whole set starts again
        "template": _pod(workload, container="accel", variables=variables),
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(workload),
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "publishNotReadyAddresses": True,
                "subdomain": workload.name,
            },
            "failurePolicy": {"maxRestarts": workload.backoff_limit},
            "replicatedJobs": [{"name": _PODS, "replicas": 1, "template": {"spec": job}}],
        },
    }


def pytorchjob(workload: Workload) -> Manifest:
    """Return a PyTorchJob; the operator sets ``MASTER_ADDR`` and, as ``RANK``, the index of a pod."""
    template = _pod(workload, container=_PYTORCH_CONTAINER, variables=[])
    template["spec"].pop("restartPolicy")  # the operator takes it from the replica
    (container,) = template["spec"]["containers"]
    container["ports"] = [{"name": _PYTORCH_PORT, "containerPort": workload.port}]
    policy = "OnFailure" if workload.backoff_limit else "Never"
    counts = {"Master": 1, "Worker": workload.num_pods - 1}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": _metadata(workload),
        "spec": {
            "runPolicy": {"backoffLimit": workload.backoff_limit, "cleanPodPolicy": "Running"},
            "pytorchReplicaSpecs": {
                name: {"replicas": count, "restartPolicy": policy, "template": template}
                for name, count in counts.items()
                if count
            },
        },
    }


class Kind(NamedTuple):
    """A resource that runs a workload, and the variable in which its pods find their index."""

    index_variable: str
    manifest_of: Callable[[Workload], Manifest]


KINDS: Mapping[str, Kind] = {"jobset": Kind(_INDEX_VARIABLE, jobset), "pytorchjob": Kind("RANK", pytorchjob)}


def _metadata(workload: Workload) -> Manifest:
    namespace = {} if workload.namespace is None else {"namespace": workload.namespace}
    return {"name": workload.name, **namespace}


def _pod(workload: Workload, *, container: str, variables: list[Manifest]) -> Manifest:
    env = [
        *variables,
        *({"name": name, "value": value} for name, value in sorted(workload.environ.items())),
        *(
            {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
            for name, (secret, key) in sorted(workload.secrets.items())
        ),
    ]
    directory = {} if workload.working_dir is None else {"workingDir": workload.working_dir}
    sizes = workload.resources
    resources = {"resources": {"requests": dict(sizes), "limits": dict(sizes)}} if sizes else {}
    return {
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": workload.grace_period_s,
            "containers": [
                {
                    "name": container,
                    "image": workload.image,
                    "command": list(workload.command),
                    **directory,
                    "env": env,
                    **resources,
                    # The default of 64 MB is too small for the workers of data loaders.
                    "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],  # noqa: S108
                }
            ],
            "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}],
        }
    }
