"""What a person asks for, with every setting decided: the question that a launcher answers with a plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from accel_launch.accelerators.choosing import asked_for
from accel_launch.config.file import ConfigFile
from accel_launch.engine import choose_engine, with_engine
from accel_launch.engine_checks import check_deepspeed, check_fsdp, fields_of_config_file, fsdp_defaults
from accel_launch.installation import INSTALL_FROM
from accel_launch.launchers.outer_task import VARIABLES_OF_A_RANK
from accel_launch.options import OPTIONS
from accel_launch.resolution import Resolved, resolve
from accel_state.environment import SETTINGS
from accel_state.errors import ConfigError, NotAvailableError
from accel_state.registry import entry_points

CommandKind = Literal["script", "module", "executable"]

# Set for each rank by whoever starts it, so never handed down as settings.
_OF_THE_LAUNCHER = frozenset({"launcher", "num_processes", "master_addr", "master_port", "ray_address"})
# What is checked of an engine's settings together, beside each one on its own.
_CHECKS: Mapping[str | None, Callable[[Mapping[str, Resolved]], None]] = {
    "DEEPSPEED": check_deepspeed,
    "FSDP": check_fsdp,
}
# What the ranks are told of an engine where nobody said it.
_DEFAULTS: Mapping[str | None, Callable[[Mapping[str, Resolved]], Mapping[str, Any]]] = {
    "FSDP": fsdp_defaults
}
_DROP_INS = "accel.drop_ins"
"""Entry points whose module runs what follows it with the package of their name replaced."""
_FP8_OVERRIDES = ("FP8_OVERRIDE_FPROP", "FP8_OVERRIDE_DGRAD", "FP8_OVERRIDE_WGRAD")


@dataclass(frozen=True, slots=True)
class Machine:
    """What the launcher knows of the machine it runs on; ``gpu_variable`` chooses among its ``gpus``."""

    num_cpu_cores: int
    gpus: tuple[str, ...]
    environ: Mapping[str, str]
    gpu_variable: str = "CUDA_VISIBLE_DEVICES"


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
    def num_local_processes(self) -> int:
        """The number of processes on each machine."""
        return self.num_processes // self.num_machines

    def value(self, name: str) -> Any:
        """Return the value of a setting."""
        return self.settings[name].value

    def is_given(self, name: str) -> bool:
        """Tell whether somebody set it: a flag, the environment or the config file."""
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
        """Return the variables that carry to the ranks what was decided; defaults stay unsaid, but for an engine's."""
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

    def describe(self) -> str:
        """Say in a few words what is asked for, for messages."""
        parts = [
            _counted(self.num_processes, "process", "processes"),
            _counted(self.num_machines, "machine", "machines"),
        ]
        return " on ".join(parts) + (f" with {self.engine}" if self.engine else "")


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
    settings = resolve(OPTIONS, flags=flags, environ=machine.environ, config=config)
    engine = choose_engine(settings, config)
    settings = with_engine(settings, engine, config)
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
        num_processes=_num_processes(settings, machine, num_machines),
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
    gpus = asked_for(selection.value, machine.gpus)
    if len(gpus) != len(selection.value.split(",")):
        raise ConfigError(
            f"`--gpu_ids` is `{selection.value}`, but the GPUs of this machine "
            f"are: {', '.join(machine.gpus) or 'none'}. "
            "Name some of these."
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


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
