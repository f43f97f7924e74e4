"""Processes started by an MPI: Open MPI, MVAPICH, Intel MPI or MPICH, which differ by the names of four variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from accel_state.environment import find_setting, read
from accel_state.errors import ConfigError
from accel_state.topology import Topology, check_within, is_set, required_int

_DEFAULT_PORT = 29500  # as torchrun's


class Variables(NamedTuple):
    """The variables of an MPI for the rank and the number of ranks, in all and on the machine."""

    rank: str
    world_size: str
    local_rank: str
    local_world_size: str


class MPIEnvironment:
    """The four variables of one MPI.

    Machines are assumed to have equally many consecutive ranks, as MPI maps them by default; the topology records the
    assumption, which the ranks check once they can communicate. Ranks on one machine meet on the loopback address; on
    several, ``MASTER_ADDR`` is needed.

    Args:
        name: The ``source`` of its topologies.
        launcher: The name in messages.
        variables: Its variables.
    """

    def __init__(self, name: str, launcher: str, variables: Variables) -> None:
        self.name = name
        self._launcher = launcher
        self._variables = variables

    def detect(self, environ: Mapping[str, str]) -> bool:
        return is_set(environ, self._variables.rank) or is_set(environ, self._variables.world_size)

    def topology(self, environ: Mapping[str, str]) -> Topology:
        """Return the topology of the process.

        Raises:
            ConfigError: If a variable is missing or contradicts another.
        """
        names = self._variables
        present = next(name for name in names if is_set(environ, name))
        rank, world_size, local_rank, local_world_size = (
            required_int(environ, name, launcher=self._launcher, because=present) for name in names
        )
        check_within(names.rank, rank, names.world_size, world_size)
        check_within(names.local_rank, local_rank, names.local_world_size, local_world_size)
        if local_world_size > world_size:
            raise ConfigError(
                f"`{names.local_world_size}` is `{local_world_size}`, but it must not exceed "
                f"`{names.world_size}` (`{world_size}`)."
            )
        num_nodes = -(-world_size // local_world_size)
        is_consecutive = (
            local_rank == rank % local_world_size
        )  # else as by `--map-by node`, as far as one rank can see
        node_rank = rank // local_world_size if is_consecutive else rank % num_nodes
        return Topology(
            rank,
            world_size,
            local_rank,
            local_world_size,
            node_rank=min(node_rank, num_nodes - 1),
            num_nodes=num_nodes,
            source=self.name,
            master_addr=environ.get("MASTER_ADDR") or ("127.0.0.1" if num_nodes == 1 else None),
            master_port=read("master_port", environ) or _DEFAULT_PORT,
            is_node_rank_assumed=num_nodes > 1,
        )


class PMIEnvironment(MPIEnvironment):
    """Intel MPI or MPICH, through the Hydra process manager."""

    def detect(self, environ: Mapping[str, str]) -> bool:
        return super().detect(environ) and not _is_srun(environ)

    def topology(self, environ: Mapping[str, str]) -> Topology:
        if environ.get("PMI_SIZE") == "1" and not is_set(environ, "MPI_LOCALRANKID"):
            # Older Hydra leaves the local variables out for a single process.
            environ = {**environ, "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
        return super().topology(environ)


def _is_srun(environ: Mapping[str, str]) -> bool:
    """Whether it was ``srun --mpi=pmi2`` that set the variables, which leaves out the local ones."""
    return not is_set(environ, "MPI_LOCALRANKID") and (
        is_set(environ, "SLURM_PROCID")
        and environ.get("PMI_RANK") == environ["SLURM_PROCID"]
        and environ.get("PMI_SIZE") in (environ.get("SLURM_STEP_NUM_TASKS"), environ.get("SLURM_NTASKS"))
    )


def _variables(prefix: str) -> Variables:
    return Variables(*(find_setting(f"{prefix}_{field}").variable for field in Variables._fields))


#: MVAPICH before PMI, whose variables its ``mpiexec`` also sets.
#: https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
MPI_ENVIRONMENTS = (
    MPIEnvironment("openmpi", "Open MPI", _variables("ompi")),
    MPIEnvironment("mvapich", "MVAPICH", _variables("mv2")),
    PMIEnvironment("pmi", "MPI", _variables("pmi")),
)
