"""Whether this process can be forked for ranks: not once it has used a GPU, or built an `Accelerator`."""

from __future__ import annotations

import sys

from accel_state.environment import read
from accel_state.errors import StateError

# Parts of torch, some from vendors' plugins, that say whether this process has used their devices.
_DEVICE_MODULES = ("cuda", "mlu", "musa", "npu", "sdaa", "xpu")


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
    """Refuse a process that has used a GPU; with ``ACCELERATE_DEBUG_MODE=yes`` a fork tries to use one.

    Raises:
        StateError: If it has.
    """
    torch = sys.modules.get("torch")
    devices = [getattr(torch, name) for name in _DEVICE_MODULES if hasattr(torch, name)]
    if any(device.is_initialized() for device in devices if hasattr(device, "is_initialized")):
        culprit = "code or an import of this notebook"
    elif read("debug_mode") and not _can_fork_use_gpu():
        culprit = "something that torch does not know of"
    else:
        return
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
