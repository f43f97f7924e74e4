"""States by name: whether those in a checkpoint are those of the parameters here."""

from __future__ import annotations

from collections.abc import Mapping

from accel_state.errors import CheckpointError


def check_names(saved: list[str], own: Mapping[str, int], file: str) -> None:
    """Compare the parameters of a saved optimizer with those that the optimizer steps.

    Raises:
        CheckpointError: If they differ; names some of them.
    """
    known = set(saved)
    missing = [name for name in own if name not in known]
    unexpected = [name for name in saved if name not in own]
    if missing or unexpected:
        parts = [f"it lacks {_listed(missing)}"] if missing else []
        parts += [f"it has {_listed(unexpected)}, which the optimizer does not step"] if unexpected else []
        raise CheckpointError(
            f"`{file}` does not fit the optimizer: {'; '.join(parts)}. "
            "Make the optimizer of the saved run, with the same groups."
        )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(f"`{name}`" for name in names[:5]) + more
