"""What the environment says of a launch: a task of ``mpirun`` or ``srun``, or one within a rank of another run."""

from __future__ import annotations

from collections.abc import Mapping

from accel_state.errors import ConfigError
from accel_state.launched_by.detect import process_environment
from accel_state.launched_by.mpi import MPI_ENVIRONMENTS
from accel_state.launched_by.slurm import SLURMEnvironment
from accel_state.topology import Topology

MPIS = frozenset(environment.name for environment in MPI_ENVIRONMENTS)
"""What the topologies of ``mpirun`` say they come from."""
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


def outer_task(environ: Mapping[str, str]) -> Topology | None:
    """Return the place of this process among the tasks of ``mpirun`` or ``srun``; None where neither started it.

    Raises:
        ConfigError: If ``RANK`` and ``WORLD_SIZE`` are left from another run.
    """
    if "TORCHELASTIC_RUN_ID" in environ:  # we are in a rank of a run of its own
        return None
    _check_agreement_with_mpirun(environ)
    around = process_environment(environ)
    return around.topology(environ) if around.name in {SLURMEnvironment.name, *MPIS} else None


def _check_agreement_with_mpirun(environ: Mapping[str, str]) -> None:
    """Refuse a ``RANK`` and ``WORLD_SIZE`` that `mpirun` contradicts: ranks would wait for others in vain."""
    mpi = next((one.topology(environ) for one in MPI_ENVIRONMENTS if one.detect(environ)), None)
    said = environ.get("RANK"), environ.get("WORLD_SIZE")
    if mpi is None or mpi.world_size == 1 or None in said or said == (str(mpi.rank), str(mpi.world_size)):
        return
    raise ConfigError(
        f"`RANK` is {said[0]} and `WORLD_SIZE` is {said[1]}, but `mpirun` has started this process as rank "
        f"{mpi.rank} of {mpi.world_size}. If they are left from another run, "
        "`unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT`."
    )


def rank_of_outer_run(environ: Mapping[str, str]) -> Topology | None:
    """Return the place of this process where it is to become a rank: several tasks share a machine."""
    place = outer_task(environ)
    return place if place is not None and place.local_world_size > 1 else None


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
