"""What a person asks for, with every setting decided: the question that a launcher answers with a plan."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from accel_launch.config.file import ConfigFile
from accel_launch.engine_checks import check_deepspeed, check_fsdp, fields_of_config_file, fsdp_defaults
from accel_launch.installation import INSTALL_FROM
from accel_launch.machine import Machine, asked_for
from accel_launch.options import OPTIONS
from accel_launch.parsers import MOST_RANKS
from accel_launch.resolution import Resolved, decide
from accel_state.environment import SETTINGS
from accel_state.errors import ConfigError, NotAvailableError
from accel_state.registry import entry_points

if TYPE_CHECKING:
    from accel_state.topology import Topology

CommandKind = Literal["script", "module", "executable"]

# Set for each rank by whoever starts it, so never handed down as settings.
_OF_THE_LAUNCHER = frozenset({"launcher", "num_processes", "master_addr", "master_port", "ray_address"})
# Checks of an engine's settings together; each one is checked by its parser.
_CHECKS: Mapping[str | None, Callable[[Mapping[str, Resolved]], None]] = {
    "DEEPSPEED": check_deepspeed,
    "FSDP": check_fsdp,
}
# Defaults of an engine that are passed to the ranks.
_DEFAULTS: Mapping[str | None, Callable[[Mapping[str, Resolved]], Mapping[str, Any]]] = {
    "FSDP": fsdp_defaults
}
_BY_HAND = frozenset({"num_machines", "machine_rank", "master_addr"})
# What torchrun, and we, give each rank.
VARIABLES_OF_A_RANK = (
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "WORLD_SIZE",
)
_PREFIXES_OF_TASKS = ("MV2_", "OMPI_", "PMI_", "SLURM_")
_DROP_INS = "accel.drop_ins"
"""Entry points whose module runs what follows it with the package of their name replaced."""
_FP8_OVERRIDES = ("FP8_OVERRIDE_FPROP", "FP8_OVERRIDE_DGRAD", "FP8_OVERRIDE_WGRAD")


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """A command to run, and how.

    ``num_processes`` counts those of all machines. ``engine`` is what trains, in the words of a config file
    (``DEEPSPEED``, ``FSDP``, ``MEGATRON_LM``, ``XLA``, or ``AMAZON_SAGEMAKER`` for that service), None for plain
    PyTorch. ``config`` is the file as it was read, for what is no setting.
    """

    command: tuple[str, ...]
    settings: Mapping[str, Resolved]
    machine: Machine
    cwd: Path
    kind: CommandKind = "script"
    interpreter: tuple[str, ...] = ("python",)
    num_processes: int = 1
    num_machines: int = 1
    machine_rank: int = 0
    engine: str | None = None
    is_quiet: bool = False
    config: ConfigFile = field(default_factory=ConfigFile)

    @property
    def outer_rank(self) -> Topology | None:
        """The place of this process among tasks of ``mpirun`` or ``srun`` that share a machine: it becomes a rank."""
        place = outer_task(self.machine.environ)
        return place if place is not None and place.local_world_size > 1 else None

    @property
    def num_local_processes(self) -> int:
        """The number of processes on each machine."""
        return self.num_processes // self.num_machines

    def value(self, name: str) -> Any:
        """Return the value of a setting."""
        return self.settings[name].value

    def is_given(self, name: str) -> bool:
        """Whether it was set by a flag, the environment or the config file."""
        return self.settings[name].source != "default"

    def program(self) -> tuple[str, ...]:
        """Return the command line of one rank, which does not buffer what it prints (``-u``)."""
        if self.kind == "executable":
            return self.command
        drop_in = ("-m", *_drop_in()) if self.value("drop_in") else ()
        module = ("-m",) if self.kind == "module" else ()
        script, *arguments = self.command
        if self.kind == "script" and script.startswith("-"):
            script = f"./{script}"  # else it would be an option of Python
        return (*self.interpreter, "-u", *drop_in, *module, script, *arguments)

    def environ(self) -> dict[str, str]:
        """Return the variables that carry to the ranks what was decided; of defaults, only those of an engine."""
        defaults = _DEFAULTS[self.engine](self.settings) if self.engine in _DEFAULTS else {}
        found = {SETTINGS[name].variable: SETTINGS[name].text_of(value) for name, value in defaults.items()}
        found |= {
            setting.variable: setting.text_of(self.value(setting.name))
            for setting in OPTIONS
            if setting.variable
            and setting.name not in _OF_THE_LAUNCHER
            and self.is_given(setting.name)
            and self.value(setting.name) is not None
        }
        overrides = self.value("fp8_override_linear_precision")
        if overrides is not None:
            found |= {name: str(on).lower() for name, on in zip(_FP8_OVERRIDES, overrides, strict=True)}
        if self.engine == "DEEPSPEED" and (fields := fields_of_config_file(self.settings)):
            found[SETTINGS["config_ds_fields"].variable] = ",".join(fields)
        if chooses_gpus(self.settings["gpu_ids"]):
            found[self.machine.gpu_variable] = found.pop("CUDA_VISIBLE_DEVICES")
        elif self.value("gpu_ids") == "all":
            del found["CUDA_VISIBLE_DEVICES"]
        if self.kind == "executable" and "PYTHONUNBUFFERED" not in self.machine.environ:
            found["PYTHONUNBUFFERED"] = "1"  # as `-u` for a script
        return found

    def named_variables(self) -> dict[str, str]:
        """Return the variables that ``--env`` names, for all processes of the run; some are secrets.

        Raises:
            ConfigError: If one that takes its value from here is not set here, or if the launcher sets one itself.
        """
        found: dict[str, str] = {}
        for given in self.value("env"):
            name, has_value, value = given.partition("=")
            if name in VARIABLES_OF_A_RANK:
                raise ConfigError(
                    f"`--env {name}` would give all ranks what the launcher gives each. Leave it out; "
                    "`--main_process_ip` and `--main_process_port` say where ranks meet."
                )
            if not has_value and name not in self.machine.environ:
                raise ConfigError(
                    f"`--env {name}` takes the value of `{name}` from here, where it is not set. Set it, or give "
                    f"`--env {name}=VALUE`."
                )
            found[name] = value if has_value else self.machine.environ[name]
        return found


def make_request(
    command: tuple[str, ...],
    *,
    flags: Mapping[str, str],
    config: ConfigFile,
    machine: Machine,
    cwd: Path,
    kind: CommandKind = "script",
    interpreter: tuple[str, ...] = ("python",),
    is_quiet: bool = False,
) -> LaunchRequest:
    """Decide every setting and check that they fit together.

    Raises:
        ConfigError: If a value is wrong, or two contradict each other.
        NotAvailableError: If a package that the settings need is not installed.
    """
    settings, engine = decide(OPTIONS, flags=flags, environ=machine.environ, config=config)
    if engine in _CHECKS:
        _CHECKS[engine](settings)
    if settings["drop_in"].value and kind == "executable":
        raise ConfigError(
            "`--drop_in` has no effect on an executable: it is a switch of Python's. Leave out `--no_python`, or run "
            "`accel drop-in install` in the environment of the executable."
        )
    if settings["drop_in"].value and not _drop_in():
        raise NotAvailableError(
            "`--drop_in` needs the package `accel`, which is not installed. "
            f"Run `pip install dist/*.whl`; `dist` has {INSTALL_FROM}."
        )
    num_machines = settings["num_machines"].value
    return LaunchRequest(
        command=command,
        settings=MappingProxyType(settings),
        machine=machine,
        cwd=cwd,
        kind=kind,
        interpreter=interpreter,
        num_processes=checked_number(_num_processes(settings, machine, num_machines)),
        num_machines=num_machines,
        machine_rank=_machine_rank(settings, num_machines),
        engine=engine,
        is_quiet=is_quiet,
        config=config,
    )


def _drop_in() -> tuple[str, ...]:
    """Return the module that lets `accelerate` mean accel, nothing where it is not installed."""
    return tuple(point.value for point in entry_points(_DROP_INS) if point.name == "accelerate")


def chooses_gpus(gpu_ids: Resolved) -> bool:
    """Whether ``--gpu_ids`` or its key names some of the GPUs; ``all`` is what a launch does anyway."""
    return gpu_ids.source in ("flag", "config file") and gpu_ids.value != "all"


def checked_number(num_processes: int) -> int:
    """Return the number of processes of a launch.

    Raises:
        ConfigError: If it is absurd.
    """
    if num_processes > MOST_RANKS:
        raise ConfigError(
            f"{num_processes} processes are asked for, but a launch has at most {MOST_RANKS}. Check "
            "`--num_processes`, `--num_machines` and the slots of `--hosts`."
        )
    return num_processes


def _num_processes(settings: Mapping[str, Resolved], machine: Machine, num_machines: int) -> int:
    asked: int | None = settings["num_processes"].value
    if settings["hosts"].value or settings["hostfile"].value:
        return (
            asked or num_machines
        )  # how many each host runs is for its accelerators to say, not for those here
    if asked is not None and asked % num_machines:
        raise ConfigError(
            f"`--num_processes` is {asked}, which cannot be divided among {num_machines} machines equally. "
            f"It counts the processes of all machines. "
            "Give a multiple of the machines."
        )
    if settings["use_cpu"].value:
        return asked or num_machines
    num_gpus = _num_gpus(settings, machine, None if asked is None else asked // num_machines)
    return asked or num_machines * (num_gpus or 1)


def _num_gpus(settings: Mapping[str, Resolved], machine: Machine, num_local_processes: int | None) -> int:
    selection = settings["gpu_ids"]
    if not chooses_gpus(selection):
        return len(machine.gpus)
    gpus = tuple(selection.value.split(","))
    # Without any, the ranks run elsewhere, or the launcher that starts them here refuses to.
    if machine.gpus and asked_for(selection.value, machine.gpus) != tuple(map(str.strip, gpus)):
        raise ConfigError(
            f"`--gpu_ids` is `{selection.value}`, but the GPUs of this machine "
            f"are: {', '.join(machine.gpus)}. Name some of these."
        )
    is_enough = num_local_processes is None or num_local_processes <= len(gpus)
    if not is_enough and not settings["share_gpus"].value:
        raise ConfigError(
            f"`--num_processes` asks for {num_local_processes} on this machine, but `--gpu_ids` names only "
            f"{len(gpus)} of its GPUs. "
            "Give the same number, leave one of them out, or, for tests, add `--share_gpus`."
        )
    return len(gpus)


def _machine_rank(settings: Mapping[str, Resolved], num_machines: int) -> int:
    rank: int = settings["machine_rank"].value
    if rank >= num_machines:
        raise ConfigError(
            f"`--machine_rank` is {rank}, but the ranks of {num_machines} machines go from 0 to {num_machines - 1}. "
            "Give each machine another of these."
        )
    return rank


def outer_task(environ: Mapping[str, str]) -> Topology | None:
    """Return the place of this process among the tasks of ``mpirun`` or ``srun``; None where neither started it.

    Raises:
        ConfigError: If ``RANK`` and ``WORLD_SIZE`` are left from another run.
    """
    if "TORCHELASTIC_RUN_ID" in environ:  # we are in a rank of a run of its own
        return None
    if not any(name.startswith(_PREFIXES_OF_TASKS) for name in environ):
        return None
    from accel_state.launched_by.detect import process_environment
    from accel_state.launched_by.mpi import MPI_ENVIRONMENTS

    _check_agreement_with_mpirun(environ)
    around = process_environment(environ)
    names = {"slurm", *(environment.name for environment in MPI_ENVIRONMENTS)}
    return around.topology(environ) if around.name in names else None


def _check_agreement_with_mpirun(environ: Mapping[str, str]) -> None:
    """Refuse a ``RANK`` and ``WORLD_SIZE`` that `mpirun` contradicts: ranks would wait for others in vain."""
    from accel_state.launched_by.mpi import MPI_ENVIRONMENTS

    mpi = next((one.topology(environ) for one in MPI_ENVIRONMENTS if one.detect(environ)), None)
    said = environ.get("RANK"), environ.get("WORLD_SIZE")
    if mpi is None or mpi.world_size == 1 or None in said or said == (str(mpi.rank), str(mpi.world_size)):
        return
    raise ConfigError(
        f"`RANK` is {said[0]} and `WORLD_SIZE` is {said[1]}, but `mpirun` has started this process as rank "
        f"{mpi.rank} of {mpi.world_size}. If they are left from another run, "
        "`unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT`."
    )


def flags_of_task(environ: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that follow from being a task of ``mpirun`` or ``srun``, as texts by name.

    One task per machine is a launcher that starts the ranks of its machine. Several are the ranks themselves, which
    read on their own who they are, so that each starts one process.

    Args:
        environ: The environment of the task.
        given: What the flags say, by the setting's name; they win where tasks are launchers.

    Raises:
        ConfigError: If the flags ask for another number of ranks than there are.
    """
    place = outer_task(environ)
    if place is None:
        return {}
    if place.local_world_size > 1:
        asked = given.get("num_processes")
        if asked not in (None, "1", str(place.world_size)):
            raise ConfigError(
                f"`--num_processes` is {asked}, but this launcher is one of {place.world_size} tasks, each of which "
                "becomes a rank. Leave the flag out, or start one task on each machine."
            )
        return {"num_processes": "1", "num_machines": "1"}
    if place.num_nodes == 1 or given.keys() & _BY_HAND:
        return {}
    found = {
        "num_machines": str(place.num_nodes),
        "machine_rank": str(place.node_rank),
        "master_addr": place.master_addr or "",
        "master_port": str(place.master_port),
    }
    return {name: text for name, text in found.items() if name not in given}


def variables_of_outer_run(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that must not be handed down, since they would make the new run join the outer.

    Outside a rank of another run there are none: ``RANK`` and the like then come from a scheduler.
    """
    if "TORCHELASTIC_RUN_ID" not in environ:
        return ()
    return tuple(name for name in VARIABLES_OF_A_RANK if name in environ)


def interpreter_command() -> tuple[str, ...]:
    """Return the command line of this Python: after ``python -O -m accel_launch`` it ends with ``-O``."""
    # What `multiprocessing` starts its processes with: all but `-u`, which every rank has.
    options = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return (sys.executable, *options)
