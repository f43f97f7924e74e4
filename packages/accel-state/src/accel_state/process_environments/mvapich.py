"""Processes started by MVAPICH."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from accel_state.process_environments.reading import is_set, ranks_topology
from accel_state.topology import Topology


class MVAPICHEnvironment:
    """``MV2_COMM_WORLD_*``. Asked before PMI, whose variables its ``mpiexec`` sets too."""

    name: ClassVar[str] = "mvapich"

    def detect(self, environ: Mapping[str, str]) -> bool:
        return is_set(environ, "MV2_COMM_WORLD_RANK") or is_set(environ, "MV2_COMM_WORLD_SIZE")

    def topology(self, environ: Mapping[str, str]) -> Topology:
        return ranks_topology(
            environ,
            source=self.name,
            launcher="MVAPICH",
            rank="MV2_COMM_WORLD_RANK",
            world_size="MV2_COMM_WORLD_SIZE",
            local_rank="MV2_COMM_WORLD_LOCAL_RANK",
            local_world_size="MV2_COMM_WORLD_LOCAL_SIZE",
        )
