"""Whether this process can be forked for ranks: not once it has used a GPU, or built an `Accelerator`."""

from __future__ import annotations

import sys

from accel_launch.notebook.gpu_users import has_used_gpu, import_that_uses_gpu
from accel_state.environment import read
from accel_state.errors import StateError


def check_no_accelerator(launcher: str) -> None:
    """Refuse a process that has built an `Accelerator`.

    Raises:
        StateError: If it has.
    """
    from accel_state.runtime import has_runtime

    if has_runtime():
        raise StateError(
            f"An `Accelerator` was built in this notebook before `{launcher}`, so its processes cannot be "
            "forked from here. Build it within the function that is launched, and restart the notebook's kernel."
        )


def check_gpus_survive_a_fork() -> None:
    """Refuse a process that has used a GPU.

    Only with ``ACCELERATE_DEBUG_MODE=yes`` it is tried whether a fork can use one, and which import it was that did:
    that does the imports again in another process, with all that they do besides.

    Raises:
        StateError: If it has.
    """
    is_debugging = read("debug_mode")
    if has_used_gpu(sys.modules):
        otherwise = "code of this notebook (no import does it by itself)"
    elif is_debugging and not _can_fork_use_gpu():
        otherwise = "something that torch does not know of"
    else:
        return
    if is_debugging:
        culprit = import_that_uses_gpu(sys.modules) or otherwise
    else:
        culprit = "code or an import of this notebook (`ACCELERATE_DEBUG_MODE=yes` finds the import)"
    raise StateError(
        f"A GPU was used before `notebook_launcher`, by {culprit}, so processes cannot be forked from here. "
        "Move what uses it into the function that is launched, and restart the notebook's kernel."
    )


def _can_fork_use_gpu() -> bool:
    from torch.multiprocessing.spawn import ProcessException, start_processes

    try:
        # torch leaves this function unannotated
        start_processes(_use_gpu, nprocs=1, start_method="fork")  # type: ignore[no-untyped-call]
    except ProcessException:
        return False
    return True


def _use_gpu(index: int) -> None:
    import torch

    torch.ones(1, device=torch.accelerator.current_accelerator() or "cuda")
