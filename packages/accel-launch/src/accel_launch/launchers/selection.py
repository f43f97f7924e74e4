"""What a launcher is, when each of ours starts a run, and which one a request gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple, Protocol

from accel_launch.plan import LaunchPlan
from accel_launch.request import LaunchRequest
from accel_launch.resolution import SAGEMAKER
from accel_launch.settings import AUTO
from accel_state.errors import ConfigError, LaunchError
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
    """One of our launchers, without the import of its class.

    ``starts`` is true of requests that it starts, unless a row before it does. ``needs`` is what a request that names
    it must have besides, ``can_start`` whether it has it. ``uses`` names conditions of settings (`unused_settings`)
    that it fulfils, ``place`` the one of their column ``not_on``. ``has_our_packages`` says whether its ranks run with
    the packages of this process, ``checks_engine`` whether it looks itself for the package of the engine.
    """

    starts: Callable[[LaunchRequest], bool]
    needs: str = ""
    can_start: Callable[[LaunchRequest], bool] | None = None
    uses: tuple[str, ...] = ()
    place: str = ""
    has_our_packages: bool = False
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


def _never(request: LaunchRequest) -> bool:
    return False


_STARTS_RANKS = ("own_ranks",)
_RELAUNCHES = ("own_ranks", "rendezvous", "machines")
# In this order: the first that starts a request gets it.
BUILT_IN: Mapping[str, Row] = {
    "sagemaker": Row(
        lambda request: request.engine == SAGEMAKER,
        "`compute_environment: AMAZON_SAGEMAKER` in the config file, as `accel config` writes it",
        place="sagemaker",
    ),
    "slurm": Row(lambda request: request.value("slurm"), uses=(*_RELAUNCHES, "slurm_job", "slurm_launcher")),
    "ssh": Row(
        lambda request: bool(request.value("hosts") or request.value("hostfile")),
        "`--hosts` or `--hostfile`",
        uses=("hosts", "machines", "own_ranks", "ssh_launcher"),
    ),
    "mpi": Row(lambda request: request.value("use_mpirun"), uses=("mpi_launcher",), has_our_packages=True),
    "single": Row(
        lambda request: (
            request.outer_rank is not None or (_is_one_process(request) and not _is_in_allocation(request))
        ),
        "`--num_processes 1` and `--num_machines 1`",
        lambda request: request.num_processes == request.num_machines == 1,
        has_our_packages=True,
    ),
    "tpu-pod": Row(
        _wants_pod,
        "`--tpu`",
        lambda request: request.engine == "XLA",
        uses=("tpu_pod",),
        place="tpu",
    ),
    "tpu": Row(
        lambda request: request.engine == "XLA",
        "`--tpu`",
        place="tpu",
    ),
    "srun": Row(
        _is_in_allocation,
        "a SLURM job around it",
        lambda request: "SLURM_JOB_NUM_NODES" in request.machine.environ,
        uses=_RELAUNCHES,
    ),
    "deepspeed": Row(
        _wants_deepspeed, "`--use_deepspeed` and `--num_machines` of more than 1", checks_engine=True
    ),
    "elastic": Row(
        _wants_rendezvous,
        "`--num_machines` of more than 1",
        lambda request: request.num_machines > 1,
        uses=("own_ranks", "rendezvous"),
        has_our_packages=True,
    ),
    "machines": Row(
        lambda request: request.num_machines > 1,
        uses=_STARTS_RANKS,
        has_our_packages=True,
    ),
    "local": Row(
        lambda request: request.num_machines == 1,
        "`--num_machines 1`",
        uses=_STARTS_RANKS,
        has_our_packages=True,
    ),
    "ray": Row(_never, place="ray"),
    "kubernetes": Row(_never, uses=("own_ranks", "rendezvous"), place="kubernetes"),
}


def _first_of_ours(request: LaunchRequest) -> str:
    return next(name for name, row in BUILT_IN.items() if row.starts(request))


def row_of(launcher: Launcher) -> Row | None:
    """Return the row of one of our launchers, None for one of another package."""
    return BUILT_IN.get(launcher.name)


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
    name = request.value("launcher")
    if name != AUTO:
        named, row = launchers.get(name)(), BUILT_IN.get(name)
        if row is not None and row.needs and not (row.can_start or row.starts)(request):
            raise ConfigError(f"`--launcher {name}` needs {row.needs}. Add that, or leave `--launcher` out.")
        return [named]
    others = [launchers.get(each)() for each in launchers.names() if each not in BUILT_IN]
    accepting = [launcher for launcher in others if launcher.accepts(request)]
    if (ours := _first_of_ours(request)) in launchers:
        accepting.append(launchers.get(ours)())
    if not accepting:
        installed = ", ".join(launchers.names()) or "none"
        raise LaunchError(
            f"No launcher can start {request.describe()}. Installed launchers: {installed}. "
            "Leave out what asks for another, or install the package that adds one."
        )
    return accepting
