"""Notes on errors of a backend, which does not know for what it was used when another rank was lost."""

from __future__ import annotations

from accel_state.group_exit import ranks_that_left
from accel_state.runtime import current_runtime, has_runtime
from accel_state.user_warnings import call_site


def note_wait(error: RuntimeError, operation: str) -> None:
    """Add to an error where this rank waited for the others."""
    note = f"This rank was in `{operation}`, called from {call_site()}, and waited for the other ranks to call it too"
    if left := ranks_that_left():
        ranks = f"rank {left[0]}" if len(left) == 1 else f"ranks {', '.join(map(str, left))}"
        note += f", but {ranks} had left: the script had ended there, or called `end_training`"
    note += "."
    if not (has_runtime() and current_runtime().debug):
        note += " `accel launch --debug` names the call that each rank made instead."
    error.add_note(note)


def note_lost_rank(error: RuntimeError, operation: str) -> None:
    """Do as `note_wait` if a backend raised the error, and nothing for others, which ``operation`` may raise too."""
    if "gloo" in str(error) or "NCCL" in str(error):
        note_wait(error, operation)
