"""Processes started by Open MPI's ``mpirun``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from accel_state.process_environments.reading import is_set, ranks_topology
from accel_state.topology import Topology


class OpenMPIEnvironment:
    """``OMPI_COMM_WORLD_*``.

    https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
    """

    name: ClassVar[str] = "openmpi"

    def detect(self, environ: Mapping[str, str]) -> bool:
        return is_set(environ, "OMPI_COMM_WORLD_RANK") or is_set(environ, "OMPI_COMM_WORLD_SIZE")

    def topology(self, environ: Mapping[str, str]) -> Topology:
        return ranks_topology(
            environ,
            source=self.name,
            launcher="Open MPI",
            rank="OMPI_COMM_WORLD_RANK",
            world_size="OMPI_COMM_WORLD_SIZE",
            local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
            local_world_size="OMPI_COMM_WORLD_LOCAL_SIZE",
        )
