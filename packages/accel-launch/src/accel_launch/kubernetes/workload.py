"""What runs on Kubernetes: how many pods of what size, and what each of them does."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from accel_launch.launchers.machines import DEFAULT_PORT
from accel_launch.launchers.relaunch import forwarded_to_images, public_variables, relaunch_command
from accel_launch.options import OPTIONS
from accel_launch.request import LaunchRequest
from accel_state.errors import ConfigError

# The Python of the image.
_INTERPRETER = ("python3",)
# Set for the pods, or only valid on this machine.
_LEFT_OUT = frozenset(
    {
        "num_processes",
        "num_machines",
        "machine_rank",
        "master_addr",
        "master_port",
        "rdzv_backend",
        "same_network",
    }
    | {"gpu_ids", "cpu_affinity", "report", "aws_access_key_id", "aws_secret_access_key"}
)
# Beyond the time that the ranks have: for the launcher in the pod to tell how they ended.
_SLACK_S = 5
# Pods are called `NAME-pods-0-INDEX-xxxxx`, and no label may be longer than 63 characters.
_LONGEST_NAME = 40


@dataclass(frozen=True, slots=True)
class Workload:
    """A job of ``num_pods`` equal pods, in each of which ``command`` starts the ranks of one machine.

    In ``command``, ``$(NAME)`` is the value of a variable: ``MASTER_ADDR`` is where the pods meet, and another one is
    the index of the pod.
    """

    name: str
    num_pods: int
    num_processes: int
    port: int
    command: tuple[str, ...]
    environ: dict[str, str]
    secrets: dict[str, tuple[str, str]]
    resources: dict[str, str]
    image: str
    namespace: str | None
    working_dir: str | None
    grace_period_s: int
    backoff_limit: int


def workload_of(request: LaunchRequest, *, index_variable: str) -> Workload:
    """Return what ``request`` asks for on Kubernetes, where each pod finds its index in ``index_variable``.

    Raises:
        ConfigError: If the image or the size of the pods is missing, or the name is too long.
    """
    image: str | None = request.value("kubernetes_image")
    if not image:
        raise ConfigError(
            "`--launcher kubernetes` needs `--kubernetes_image`, an image with Python, accel-launch and the script."
        )
    num_gpus, num_local = _size_of_pods(request)
    port: int = request.value("master_port") or DEFAULT_PORT
    sizes = {
        request.value("kubernetes_gpu_resource"): str(num_gpus) if num_gpus else None,
        "cpu": request.value("kubernetes_cpu"),
        "memory": request.value("kubernetes_memory"),
    }
    secrets = _secrets(request)
    return Workload(
        _name(request),
        request.num_machines,
        num_local * request.num_machines,
        port,
        _command(request, num_local=num_local, port=port, index_variable=index_variable),
        _environ(request, secrets),
        secrets,
        {name: size for name, size in sizes.items() if size},
        image,
        request.value("kubernetes_namespace"),
        request.value("kubernetes_working_dir"),
        math.ceil(request.value("grace_period_s")) + _SLACK_S,
        request.value("kubernetes_backoff_limit"),
    )


def _size_of_pods(request: LaunchRequest) -> tuple[int, int]:
    """Return how many GPUs and how many processes each pod has."""
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
    num_gpus = num_local if gpus is None else gpus
    assert num_gpus is not None
    if num_local is not None and num_local > num_gpus:
        raise ConfigError(
            f"`--num_processes` asks for {num_local} in each pod, but `--kubernetes_gpus_per_node` is {num_gpus}. "
            "Give one of them, or the same number."
        )
    return num_gpus, num_local or max(1, num_gpus)


def _command(request: LaunchRequest, *, num_local: int, port: int, index_variable: str) -> tuple[str, ...]:
    words = relaunch_command(request, without=_LEFT_OUT, interpreter=_INTERPRETER, is_self_contained=True)
    # In a manifest `$(NAME)` is the value of a variable, and `$$` is a dollar sign.
    words = tuple(word.replace("$", "$$") for word in words)
    own: tuple[str, ...] = (
        f"--num_processes={num_local * request.num_machines}",
        f"--num_machines={request.num_machines}",
    )
    if request.num_machines > 1:
        own += (
            f"--machine_rank=$({index_variable})",
            "--main_process_ip=$(MASTER_ADDR)",
            f"--main_process_port={port}",
        )
    end = len(_INTERPRETER) + len(("-m", "accel_launch", "launch"))
    return (*words[:end], *own, *words[end:])


def _environ(request: LaunchRequest, secrets: dict[str, tuple[str, str]]) -> dict[str, str]:
    """Return the variables in the manifest: those that other machines get, and settings without a flag."""
    of_settings = request.environ()
    without_flag = {setting.variable for setting in OPTIONS if not setting.flag}
    found = forwarded_to_images(request.machine.environ)
    found |= {name: value for name, value in of_settings.items() if name in without_flag}
    found |= public_variables(
        {name: value for name, value in request.named_variables().items() if name not in secrets},
        where="everybody who may read the job would see its value",
        otherwise="Keep it in a secret of the cluster and name that with `--kubernetes_secrets`.",
    )
    return {name: value.replace("$", "$$") for name, value in found.items() if name not in secrets}


def _secrets(request: LaunchRequest) -> dict[str, tuple[str, str]]:
    given: str = request.value("kubernetes_secrets") or ""
    found = {}
    for part in filter(None, given.split(",")):
        variable, _, reference = part.partition("=")
        secret, _, key = reference.partition(":")
        found[variable] = (secret, key)
    return found


def _name(request: LaunchRequest) -> str:
    asked: str | None = request.value("kubernetes_job_name")
    script = request.command[0].rpartition("/")[2].removesuffix(".py").lower()
    name = asked or f"accel-{re.sub('[^a-z0-9]+', '-', script)}"[:_LONGEST_NAME].strip("-")
    if len(name) > _LONGEST_NAME:
        raise ConfigError(
            f"`--kubernetes_job_name` is `{name}`, but it may have at most {_LONGEST_NAME} characters: the names of "
            "the pods begin with it. Choose a shorter name."
        )
    return name
