"""Detect the launcher that started this process: the first in a fixed order whose variables are set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

from accel_state.errors import ConfigError
from accel_state.launched_by.mpi import MPI_ENVIRONMENTS
from accel_state.launched_by.slurm import SLURMEnvironment
from accel_state.launched_by.torchrun import TorchrunEnvironment
from accel_state.launched_by.xla import XLAEnvironment
from accel_state.topology import Topology, optional_int


class ProcessEnvironment(Protocol):
    """A pure reader of the variables that one launcher sets for the processes it starts."""

    @property
    def name(self) -> str:
        """The ``source`` of its topologies."""
        ...

    def detect(self, environ: Mapping[str, str]) -> bool:
        """Return whether this launcher started the process: true if any of its variables is set."""
        ...

    def topology(self, environ: Mapping[str, str]) -> Topology:
        """Return the topology of the process; called only if `detect` is true.

        Raises:
            ConfigError: If a variable is missing, no number, or contradicts another; the message names it.
        """
        ...


class PlainEnvironment:
    """A process without a launcher: the last in the list, which is always detected."""

    name: ClassVar[str] = "plain"

    def detect(self, environ: Mapping[str, str]) -> bool:
        return True

    def topology(self, environ: Mapping[str, str]) -> Topology:
        """Return the topology of a single process.

        Raises:
            ConfigError: If ``WORLD_SIZE`` is not 1.
        """
        world_size = optional_int(environ, "WORLD_SIZE")
        if world_size is not None and world_size != 1:
            raise ConfigError(
                f"`WORLD_SIZE` is `{world_size}`, but `RANK` and `LOCAL_RANK` are not set. Start the script "
                "with `accel launch` or `torchrun`, or unset `WORLD_SIZE` to run a single process."
            )
        return Topology(source=self.name)


# The innermost launcher first: torchrun runs inside of mpirun and srun, mpirun starts its daemons with srun.
PROCESS_ENVIRONMENTS: tuple[ProcessEnvironment, ...] = (
    TorchrunEnvironment(),
    *MPI_ENVIRONMENTS,
    SLURMEnvironment(),
    XLAEnvironment(),
    PlainEnvironment(),
)


def process_environment(environ: Mapping[str, str]) -> ProcessEnvironment:
    """Return the environment that started the process whose variables are ``environ``."""
    return next(environment for environment in PROCESS_ENVIRONMENTS if environment.detect(environ))


def detect_topology(environ: Mapping[str, str]) -> Topology:
    """Return the topology of the process whose variables are ``environ``, reading nothing else.

    Raises:
        ConfigError: If the variables are incomplete or contradict each other.
    """
    return process_environment(environ).topology(environ)
