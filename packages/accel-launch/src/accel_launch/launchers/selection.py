"""What a launcher is, when each of ours starts a run, and which one a request gets."""

# ruff: noqa: E501 -- a row is a line
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple, Protocol

from accel_launch.options import SETTINGS_OF_OTHERS, TOPICS
from accel_launch.plan import LaunchPlan
from accel_launch.request import LaunchRequest
from accel_launch.resolution import SAGEMAKER
from accel_launch.settings import AUTO
from accel_state.errors import ConfigError
from accel_state.registry import Registry

LAUNCHER_GROUP = "accel.launchers"


class Launcher(Protocol):
    """A way to start processes. Its entry point names a class like this, made without arguments.

    Settings of its own are a tuple of `Setting` that the entry point of the same name in the group
    ``accel.launcher_settings`` names: their flags, variables and config keys work as those of all others.
    """

    name: ClassVar[str]
    """The name of its entry point."""

    def accepts(self, request: LaunchRequest) -> bool:
        """Return whether to use this launcher for ``request`` where none is named.

        Launchers of other packages are asked before ours, by name; the first that returns true starts the run.
        """
        ...

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        """Return what would be done, as data; starts nothing and reads nothing of the machine."""
        ...

    def run(self, plan: LaunchPlan) -> int:
        """Do it, wait for the end, and return the exit code: 0, or that of the rank that failed first."""
        ...


class BuiltInLauncher:
    """One of our launchers; its row in `BUILT_IN` is what `accepts` returns."""

    name: ClassVar[str]

    def accepts(self, request: LaunchRequest) -> bool:
        return _first_of_ours(request) == self.name


class Row(NamedTuple):
    """One of our launchers, without its class: a launch that it does not start need not import it.

    Attributes:
        starts: Whether it starts a request, unless a row before it does.
        needs: What asks for it, for messages.
        can_start: Whether it can start a request that names it; ``starts`` if omitted.
        topic: The topic whose settings it alone reads (`options`).
        job_variable: A variable inside its jobs, where its settings have had their effect.
        uses: The conditions of settings that it fulfills (`unused_settings`).
        place: Where it runs, as in "on Ray".
        unused: The settings that have no effect there.
        starts_ranks_here: Whether its ranks run on this machine, with the packages of this process.
        checks_engine: Whether it looks for the package of the engine.
    """

    starts: Callable[[LaunchRequest], bool]
    needs: str = ""
    can_start: Callable[[LaunchRequest], bool] | None = None
    topic: str = ""
    job_variable: str = ""
    uses: tuple[str, ...] = ()
    place: str = ""
    unused: frozenset[str] = frozenset()
    starts_ranks_here: bool = False
    checks_engine: bool = False


def _wants_pod(request: LaunchRequest) -> bool:
    is_pod = request.value("tpu_cluster") and not request.value("no_tpu_cluster")
    return request.engine == "XLA" and bool(is_pod)


def _wants_deepspeed(request: LaunchRequest) -> bool:
    is_own_way = request.value("deepspeed_multinode_launcher") != "standard"
    return request.engine == "DEEPSPEED" and request.num_machines > 1 and is_own_way


def _wants_rendezvous(request: LaunchRequest) -> bool:
    has_to_agree = request.value("rdzv_backend") != "static" or request.value("max_restarts")
    return request.num_machines > 1 and bool(has_to_agree)


def _is_in_allocation(request: LaunchRequest) -> bool:
    """Return whether this is the shell of a SLURM job with several nodes, and this node's place is not given."""
    environ = request.machine.environ
    if "SLURM_JOB_ID" not in environ or int(environ.get("SLURM_JOB_NUM_NODES") or 1) == 1:
        return False
    from accel_state.launched_by.slurm import SLURMEnvironment

    # A config file is for all nodes alike: `--slurm` hands it on to its job, and `accel config` writes a rank into it.
    names = ("num_machines", "machine_rank")
    by_hand = any(request.settings[name].source in ("flag", "environment") for name in names)
    return not by_hand and not SLURMEnvironment().detect(environ)


def _is_one_process(request: LaunchRequest) -> bool:
    of_own_ranks = ("max_restarts", "tee", "log_dir", "role")
    has_ranks = request.num_processes > 1 or request.num_machines > 1 or request.engine is not None
    return not has_ranks and not any(map(request.is_given, of_own_ranks))


def _always(request: LaunchRequest) -> bool:
    return True


def _never(request: LaunchRequest) -> bool:
    return False


_OWN = ("own_ranks",)
_RELAUNCHES = ("own_ranks", "rendezvous", "machines")
# Where machines are numbered and devices chosen by others.
_CHOSEN_THERE = frozenset(
    {"gpu_ids", "share_gpus", "cpu_affinity", "master_addr", "machine_rank", "same_network", "rdzv_backend"}
)
_NOT_ON_TPUS = _CHOSEN_THERE | {"num_machines", "num_cpu_threads_per_process", "master_port"}
_NOT_ON_SAGEMAKER = _CHOSEN_THERE | {
    "num_processes",
    "nproc_per_node",
    "use_cpu",
    "num_cpu_threads_per_process",
    "master_port",
    "grace_period_s",
    "report",
}
# In this order: the first that starts a request gets it.
# fmt: off
BUILT_IN: Mapping[str, Row] = {
    "sagemaker": Row(lambda request: request.engine == SAGEMAKER, "`compute_environment: AMAZON_SAGEMAKER` in the config file, as `accel config` writes it", place="on SageMaker", unused=_NOT_ON_SAGEMAKER),
    "slurm": Row(lambda request: request.value("slurm"), "`--slurm`", _always, topic="slurm", job_variable="SLURM_JOB_ID", uses=_RELAUNCHES),
    "ssh": Row(lambda request: bool(request.value("hosts") or request.value("hostfile")), "`--hosts` or `--hostfile`", topic="hosts", uses=("machines", "own_ranks")),
    "mpi": Row(lambda request: request.value("use_mpirun"), "`--use_mpirun`", _always, topic="mpi", starts_ranks_here=True),
    "single": Row(lambda request: request.outer_rank is not None or (_is_one_process(request) and not _is_in_allocation(request)), "`--num_processes 1` and `--num_machines 1`", lambda request: request.num_processes == request.num_machines == 1, starts_ranks_here=True),
    "tpu-pod": Row(_wants_pod, "`--tpu`", lambda request: request.engine == "XLA", uses=("tpu_pod",), place="on TPUs", unused=_NOT_ON_TPUS),
    "tpu": Row(lambda request: request.engine == "XLA", "`--tpu`", place="on TPUs", unused=_NOT_ON_TPUS),
    "srun": Row(_is_in_allocation, "a SLURM job around it", lambda request: "SLURM_JOB_NUM_NODES" in request.machine.environ, uses=_RELAUNCHES),
    "deepspeed": Row(_wants_deepspeed, "`--use_deepspeed` and `--num_machines` of more than 1", checks_engine=True),
    "elastic": Row(_wants_rendezvous, "`--num_machines` of more than 1", lambda request: request.num_machines > 1, uses=("own_ranks", "rendezvous"), starts_ranks_here=True),
    "machines": Row(lambda request: request.num_machines > 1, can_start=_always, uses=_OWN, starts_ranks_here=True),
    "local": Row(lambda request: request.num_machines == 1, "`--num_machines 1`", uses=_OWN, starts_ranks_here=True),
    "ray": Row(_never, "`--launcher ray`", _always, topic="ray", place="on Ray", unused=_CHOSEN_THERE),
    "kubernetes": Row(_never, "`--launcher kubernetes`", _always, topic="kubernetes", uses=("own_ranks", "rendezvous"), place="on Kubernetes", unused=_CHOSEN_THERE | {"report"}),
}
# fmt: on
OF_OTHERS = Row(_never, uses=tuple(name for row in BUILT_IN.values() for name in row.uses))
OWNERS: Mapping[str, str] = {
    setting.name: name
    for name, row in BUILT_IN.items()
    if row.topic
    for setting in TOPICS[row.topic].settings
} | {setting.name: name for name, table in SETTINGS_OF_OTHERS.items() for setting in table}
"""The launcher of each setting that only one reads, by the setting's name."""
CHOSEN_BY_NAME: frozenset[str] = frozenset(
    name for name, owner in OWNERS.items() if owner not in BUILT_IN or BUILT_IN[owner].starts is _never
)
"""Those of launchers that only `--launcher` chooses, or that other packages add."""


def without_launcher(name: str, request: LaunchRequest | None = None) -> str | None:
    """Return how a launch by another launcher differs, as in "without `--slurm`"; None inside a job of this one."""
    row = BUILT_IN.get(name)
    if row is None:
        return f"without `--launcher {name}`"
    if request is not None and row.job_variable in request.machine.environ:
        return None
    return "with this `--launcher`" if request is not None and row.starts(request) else f"without {row.needs}"


def _first_of_ours(request: LaunchRequest) -> str:
    return next(name for name, row in BUILT_IN.items() if row.starts(request))


def row_of(launcher: Launcher) -> Row:
    """Return the row of a launcher; that of all launchers of other packages is `OF_OTHERS`."""
    return BUILT_IN.get(launcher.name, OF_OTHERS)


def select_launcher(request: LaunchRequest, registry: Registry[type[Launcher]] | None = None) -> Launcher:
    """Return the launcher that starts ``request``.

    `--launcher` decides alone. Without it, launchers of other packages come before ours, by name; of ours there is
    always one, which follows from the settings.

    Raises:
        UnknownNameError: If `--launcher` names none that is installed.
        ConfigError: If it names one that lacks what only other settings say.
    """
    launchers = Registry("launcher", LAUNCHER_GROUP) if registry is None else registry
    name = request.value("launcher")
    if name != AUTO:
        named, row = launchers.get(name)(), BUILT_IN.get(name)
        if row is not None and not (row.can_start or row.starts)(request):
            raise ConfigError(f"`--launcher {name}` needs {row.needs}. Add that, or leave `--launcher` out.")
        return named
    for other in (launchers.get(each)() for each in launchers.names() if each not in BUILT_IN):
        if other.accepts(request):
            return other
    return launchers.get(_first_of_ours(request))()
