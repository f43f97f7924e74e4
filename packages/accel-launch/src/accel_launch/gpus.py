"""Which GPUs, or accelerators of another vendor, a launch counts and gives its processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from accel_launch.accelerators.detection import find_accelerators
from accel_launch.accelerators.protocol import MACHINE


def visible_gpus(environ: Mapping[str, str], root: Path = MACHINE) -> tuple[str, ...]:
    """Return the accelerators that a process with this environment would use, asking neither torch nor CUDA.

    Args:
        environ: The environment of the process; the vendors' variables choose and order.
        root: Folder that stands for ``/``.
    """
    return find_accelerators(environ, root=root).names


def selected_gpus(selection: str, present: tuple[str, ...]) -> tuple[str, ...]:
    """Return the entries of ``--gpu_ids`` up to the first that cannot be among ``present``.

    Numbers are compared. Names (``GPU-…``, ``MIG-…``, or with a number in them) are for the driver to know.
    """
    chosen: list[str] = []
    for entry in (part.strip() for part in selection.split(",")):
        is_known = bool(present) if _is_name(entry) else entry in present
        if not is_known:
            break
        chosen.append(entry)
    return tuple(chosen)


def _is_name(entry: str) -> bool:
    if entry.lstrip("-").isdigit():
        return False
    return entry.startswith(("GPU-", "MIG-")) or any(letter.isdigit() for letter in entry)
