"""Which launcher starts a request: the one that it names, else one of another package, else ours by the settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from accel_launch.launchers.outer_task import rank_of_outer_run
from accel_launch.launchers.protocol import LAUNCHER_GROUP, Launcher
from accel_launch.request import LaunchRequest
from accel_launch.settings import AUTO
from accel_state.errors import ConfigError, LaunchError
from accel_state.launched_by.slurm import SLURMEnvironment
from accel_state.registry import Registry

# What the launchers do that start the ranks of this machine themselves.
SETTINGS_OF_OWN_RANKS = ("max_restarts", "tee", "log_dir", "role")


class BuiltInLauncher:
    """One of our launchers; where nobody names one, `route` chooses among them."""

    name: ClassVar[str]

    def accepts(self, request: LaunchRequest) -> bool:
        return route(request) == self.name


def select_launcher(request: LaunchRequest, registry: Registry[type[Launcher]] | None = None) -> Launcher:
    """Return the launcher that starts ``request``: the first of `accepting_launchers`, with its errors."""
    return accepting_launchers(request, registry)[0]


def accepting_launchers(
    request: LaunchRequest, registry: Registry[type[Launcher]] | None = None
) -> list[Launcher]:
    """Return the launchers that ``request`` is for, the one that starts it first.

    `--launcher` decides alone. Without it, launchers of other packages come before ours, by name; of ours there is
    always one, which follows from the settings.

    Raises:
        UnknownNameError: If `--launcher` names none that is installed.
        ConfigError: If it names one that lacks what only other settings say.
        LaunchError: If none accepts the request.
    """
    launchers = Registry("launcher", LAUNCHER_GROUP) if registry is None else registry
    if request.value("launcher") != AUTO:
        name = request.value("launcher")
        named = launchers.get(name)()
        is_met, needs = _NEEDS.get(name, (None, ""))
        if is_met is not None and not is_met(request):
            raise ConfigError(f"`--launcher {name}` needs {needs}. Add that, or leave `--launcher` out.")
        return [named]
    others = [launchers.get(name)() for name in launchers.names() if name not in BUILT_IN]
    accepting = [launcher for launcher in others if launcher.accepts(request)]
    ours = route(request)
    if ours in launchers:
        accepting.append(launchers.get(ours)())
    if not accepting:
        installed = ", ".join(launchers.names()) or "none"
        raise LaunchError(
            f"No launcher can start {request.describe()}. Installed launchers: {installed}. "
            "Leave out what asks for another, or install the package that adds one."
        )
    return accepting


def route(request: LaunchRequest) -> str:
    """Return the name of the launcher that ``request`` is for: the one it names, else one of ours."""
    named: str = request.value("launcher")
    return _route_by_signs(request) if named == AUTO else named


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
        is_pod = request.value("tpu_cluster") and not request.value("no_tpu_cluster")
        return "tpu-pod" if is_pod else "tpu"
    if is_in_allocation_of_several_nodes(request):
        return "srun"
    return _route_of_ranks(request)


def _route_of_ranks(request: LaunchRequest) -> str:
    if wants_deepspeed_runner(request):
        return "deepspeed"
    if request.num_machines > 1:
        return "elastic" if wants_rendezvous(request) else "machines"
    has_ranks = request.num_processes > 1 or request.engine is not None
    return "local" if has_ranks or any(map(request.is_given, SETTINGS_OF_OWN_RANKS)) else "single"


def wants_rendezvous(request: LaunchRequest) -> bool:
    """Whether the machines have to agree on anything while they run."""
    return bool(request.value("rdzv_backend") != "static" or request.value("max_restarts"))


def wants_deepspeed_runner(request: LaunchRequest) -> bool:
    """Whether DeepSpeed is to start its ranks on several machines in a way of its own."""
    is_own_way = request.value("deepspeed_multinode_launcher") != "standard"
    return request.engine == "DEEPSPEED" and request.num_machines > 1 and is_own_way


def is_in_allocation_of_several_nodes(request: LaunchRequest) -> bool:
    """Whether this is the shell of a SLURM job with several nodes, and nobody has said which of them we are."""
    environ = request.machine.environ
    # A config file is for all nodes alike: `--slurm` hands it on to its job, and `accel config` writes a rank into it.
    by_hand = any(
        request.settings[name].source in ("flag", "environment") for name in ("num_machines", "machine_rank")
    )
    is_shell = "SLURM_JOB_ID" in environ and not SLURMEnvironment().detect(environ)
    return is_shell and not by_hand and int(environ.get("SLURM_JOB_NUM_NODES") or 1) > 1


# What our launchers need that nothing but other settings says.
_NEEDS: Mapping[str, tuple[Callable[[LaunchRequest], bool], str]] = {
    "sagemaker": (
        lambda request: request.engine == "AMAZON_SAGEMAKER",
        "`compute_environment: AMAZON_SAGEMAKER` in the config file, as `accel config` writes it",
    ),
    "ssh": (
        lambda request: bool(request.value("hosts") or request.value("hostfile")),
        "`--hosts` or `--hostfile`",
    ),
    "tpu-pod": (lambda request: request.engine == "XLA", "`--tpu`"),
    "tpu": (lambda request: request.engine == "XLA", "`--tpu`"),
    "srun": (lambda request: "SLURM_JOB_NUM_NODES" in request.machine.environ, "a SLURM job around it"),
    "deepspeed": (wants_deepspeed_runner, "`--use_deepspeed` and `--num_machines` of more than 1"),
    "elastic": (lambda request: request.num_machines > 1, "`--num_machines` of more than 1"),
    "local": (lambda request: request.num_machines == 1, "`--num_machines 1`"),
    "single": (
        lambda request: request.num_processes == request.num_machines == 1,
        "`--num_processes 1` and `--num_machines 1`",
    ),
}
BUILT_IN = frozenset({*_NEEDS, "slurm", "mpi", "machines", "ray", "kubernetes"})
