"""Which of our launchers a request is for: the first whose sign is there, in a fixed order."""

from __future__ import annotations

from accel_launch.request import LaunchRequest
from accel_state.process_environments.slurm import SLURMEnvironment

# What only torch's elastic agent can do.
_AGENT_SETTINGS = ("max_restarts", "rdzv_conf", "tee", "log_dir", "role")


def route(request: LaunchRequest) -> str:
    """Return the name of the launcher that ``request`` is for."""
    engine = request.engine
    if engine == "AMAZON_SAGEMAKER":
        return "sagemaker"
    if request.value("slurm"):
        return "slurm"
    if request.value("hosts") or request.value("hostfile"):
        return "ssh"
    if request.value("use_mpirun"):
        return "mpi"
    if engine == "XLA":
        return "tpu-pod" if _wants_pod(request) else "tpu"
    if is_in_allocation_of_several_nodes(request):
        return "srun"
    return _route_of_ranks(request)


def _route_of_ranks(request: LaunchRequest) -> str:
    if wants_deepspeed_runner(request):
        return "deepspeed"
    if wants_agent(request):
        return "elastic"
    if request.num_machines > 1:
        return "machines"
    return "local" if request.num_processes > 1 or request.engine is not None else "single"


def wants_agent(request: LaunchRequest) -> bool:
    """Whether something is asked for that only torch's elastic agent does."""
    asked = any(request.is_given(name) for name in _AGENT_SETTINGS)
    return asked or (request.num_machines > 1 and request.value("rdzv_backend") != "static")


def wants_deepspeed_runner(request: LaunchRequest) -> bool:
    """Whether DeepSpeed is to start its ranks on several machines in a way of its own."""
    is_own_way = request.value("deepspeed_multinode_launcher") != "standard"
    return request.engine == "DEEPSPEED" and request.num_machines > 1 and is_own_way


def is_in_allocation_of_several_nodes(request: LaunchRequest) -> bool:
    """Whether this is the shell of a SLURM job with several nodes, and nobody has said which of them we are."""
    environ = request.machine.environ
    by_hand = request.is_given("num_machines") or request.is_given("machine_rank")
    is_shell = "SLURM_JOB_ID" in environ and not SLURMEnvironment().detect(environ)
    return is_shell and not by_hand and int(environ.get("SLURM_JOB_NUM_NODES") or 1) > 1


def _wants_pod(request: LaunchRequest) -> bool:
    return bool(request.value("tpu_cluster")) and not request.value("no_tpu_cluster")
