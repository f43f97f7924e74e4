"""Processes started by Intel MPI or MPICH, through the Hydra process manager."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from accel_state.process_environments.reading import is_set, ranks_topology
from accel_state.topology import Topology


class PMIEnvironment:
    """``PMI_RANK``, ``PMI_SIZE``, ``MPI_LOCALRANKID``, ``MPI_LOCALNRANKS``."""

    name: ClassVar[str] = "pmi"

    def detect(self, environ: Mapping[str, str]) -> bool:
        return (is_set(environ, "PMI_RANK") or is_set(environ, "PMI_SIZE")) and not self._is_srun(environ)

    def topology(self, environ: Mapping[str, str]) -> Topology:
        if environ.get("PMI_SIZE") == "1" and not is_set(environ, "MPI_LOCALRANKID"):
            # Older Hydra leaves the local variables out for a single process.
            environ = {**environ, "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
        return ranks_topology(
            environ,
            source=self.name,
            launcher="MPI",
            rank="PMI_RANK",
            world_size="PMI_SIZE",
            local_rank="MPI_LOCALRANKID",
            local_world_size="MPI_LOCALNRANKS",
        )

    def _is_srun(self, environ: Mapping[str, str]) -> bool:
        """Whether it was ``srun --mpi=pmi2`` that set the variables, which leaves out the local ones."""
        return not is_set(environ, "MPI_LOCALRANKID") and (
            is_set(environ, "SLURM_PROCID")
            and environ.get("PMI_RANK") == environ["SLURM_PROCID"]
            and environ.get("PMI_SIZE") in (environ.get("SLURM_STEP_NUM_TASKS"), environ.get("SLURM_NTASKS"))
        )
