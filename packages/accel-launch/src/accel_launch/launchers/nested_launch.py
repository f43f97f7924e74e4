"""What the environment says of a launch: that it is a task of SLURM's ``srun``, or within a rank of another run."""

from __future__ import annotations

from collections.abc import Mapping

from accel_state.process_environments.slurm import SLURMEnvironment

# What torchrun, and we, give each rank.
_VARIABLES_OF_A_RANK = (
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


def flags_of_slurm_task(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that follow from being a task of ``srun``, as texts by name; empty outside of one.

    One task per node is a launcher that starts the ranks of its node. Several are the ranks themselves, which
    read SLURM's variables on their own, so that each starts one process.
    """
    slurm = SLURMEnvironment()
    if not slurm.detect(environ) or "TORCHELASTIC_RUN_ID" in environ:
        return {}
    place = slurm.topology(environ)
    if place.local_world_size > 1:
        return {"num_processes": "1"}
    if place.num_nodes == 1:
        return {}
    return {
        "num_machines": str(place.num_nodes),
        "machine_rank": str(place.node_rank),
        "master_addr": place.master_addr or "",
        "master_port": str(place.master_port),
    }


def variables_of_outer_run(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that must not be handed down, since they would make the new run join the outer.

    Outside a rank of another run there are none: ``RANK`` and the like then come from a scheduler.
    """
    if "TORCHELASTIC_RUN_ID" not in environ:
        return ()
    return tuple(name for name in _VARIABLES_OF_A_RANK if name in environ)
