"""Launching from within a rank of another run."""

from __future__ import annotations

from collections.abc import Mapping

# What torch's elastic agent gives each rank.
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


def variables_of_outer_run(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that must not be handed down, since they would make the new run join the outer.

    Outside a rank of torch's elastic agent there are none: ``RANK`` and the like then come from a scheduler.
    """
    if "TORCHELASTIC_RUN_ID" not in environ:
        return ()
    return tuple(name for name in _VARIABLES_OF_A_RANK if name in environ)
