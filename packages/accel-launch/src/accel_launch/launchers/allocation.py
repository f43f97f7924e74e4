"""What SLURM's variables say about the machines of a run."""

from __future__ import annotations

from collections.abc import Mapping

from accel_state.process_environments.slurm import SLURMEnvironment


def flags_of_step(environ: Mapping[str, str]) -> dict[str, str]:
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
