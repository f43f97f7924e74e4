"""Which process environment this is: the first in a fixed order that left a trace."""

from __future__ import annotations

from collections.abc import Mapping

from accel_state.process_environments.mpi import MPI_ENVIRONMENTS
from accel_state.process_environments.plain import PlainEnvironment
from accel_state.process_environments.protocol import ProcessEnvironment
from accel_state.process_environments.slurm import SLURMEnvironment
from accel_state.process_environments.torchrun import TorchrunEnvironment
from accel_state.process_environments.xla import XLAEnvironment
from accel_state.topology import Topology

# The innermost starter first: torchrun runs inside of mpirun and srun, mpirun starts its daemons with srun.
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
    """Return the place of the process whose variables are ``environ``; pure, nothing else is looked at.

    Raises:
        ConfigError: If the variables are incomplete or contradict each other.
    """
    return process_environment(environ).topology(environ)
