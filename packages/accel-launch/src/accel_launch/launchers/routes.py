"""Which of our launchers a request is for: the one that was named, else the first whose sign is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from accel_launch.launchers.outer_task import rank_of_outer_run
from accel_launch.request import LaunchRequest
from accel_launch.settings import AUTO
from accel_state.errors import ConfigError
from accel_state.process_environments.slurm import SLURMEnvironment

# What only torch's elastic agent can do.
_AGENT_SETTINGS = ("max_restarts", "rdzv_conf", "tee", "log_dir", "role")


def route(request: LaunchRequest) -> str:
    """Return the name of the launcher that ``request`` is for: the one it names, else one of ours."""
    named: str = request.value("launcher")
    return _route_by_signs(request) if named == AUTO else named


def check_named(request: LaunchRequest) -> None:
    """Make sure that the launcher which `--launcher` names can do what else is asked for.

    Raises:
        ConfigError: If it lacks something that only other settings say.
    """
    name = route(request)
    is_met, needs = _NEEDS.get(name, (_always, ""))
    if not is_met(request):
        raise ConfigError(f"`--launcher {name}` needs {needs}. Add that, or leave `--launcher` out.")


def _route_by_signs(request: LaunchRequest) -> str:
    engine = request.engine
    if engine == "AMAZON_SAGEMAKER":
        return "sagemaker"
    if request.value("slurm"):
        return "slurm"
    if request.value("hosts") or request.value("hostfile"):
        return "ssh"
    if request.value("use_mpirun"):
        return "mpi"
    if rank_of_outer_run(request.machine.environ) is not None:
        return "single"
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


def _always(request: LaunchRequest) -> bool:
    return True


# All of our launchers, and what each needs that nothing but other settings says.
_NEEDS: Mapping[str, tuple[Callable[[LaunchRequest], bool], str]] = {
    "sagemaker": (
        lambda request: request.engine == "AMAZON_SAGEMAKER",
        "`compute_environment: AMAZON_SAGEMAKER` in the config file, as `accel config` writes it",
    ),
    "slurm": (_always, ""),
    "ssh": (
        lambda request: bool(request.value("hosts") or request.value("hostfile")),
        "`--hosts` or `--hostfile`",
    ),
    "mpi": (_always, ""),
    "tpu-pod": (lambda request: request.engine == "XLA", "`--tpu`"),
    "tpu": (lambda request: request.engine == "XLA", "`--tpu`"),
    "srun": (lambda request: "SLURM_JOB_NUM_NODES" in request.machine.environ, "a SLURM job around it"),
    "deepspeed": (wants_deepspeed_runner, "`--use_deepspeed` and `--num_machines` of more than 1"),
    "elastic": (_always, ""),
    "machines": (_always, ""),
    "local": (lambda request: request.num_machines == 1, "`--num_machines 1`"),
    "single": (
        lambda request: request.num_processes == request.num_machines == 1,
        "`--num_processes 1` and `--num_machines 1`",
    ),
    "ray": (_always, ""),
    "kubernetes": (_always, ""),
}
BUILT_IN = frozenset(_NEEDS)
