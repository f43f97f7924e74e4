"""Which GPUs this machine has, asked of the driver's device files: no torch, no library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_DEVICE_FILE = re.compile(r"nvidia(\d+)")


def gpus_of_machine(device_folder: Path = Path("/dev")) -> tuple[str, ...]:
    """Return the numbers of the NVIDIA GPUs whose device file is here, in order."""
    if not device_folder.is_dir():
        return ()
    found = (_DEVICE_FILE.fullmatch(path.name) for path in device_folder.iterdir())
    return tuple(str(number) for number in sorted(int(match[1]) for match in found if match))


def visible_gpus(environ: Mapping[str, str], device_folder: Path = Path("/dev")) -> tuple[str, ...]:
    """Return the GPUs that a process with this environment would see.

    ``CUDA_VISIBLE_DEVICES`` selects and orders them. As for the driver, its list ends before the first entry
    that names no GPU of the machine; names other than numbers (UUIDs, MIG instances) are taken as they are.
    """
    present = gpus_of_machine(device_folder)
    selection = environ.get("CUDA_VISIBLE_DEVICES")
    if selection is None or not present:
        return present
    return selected_gpus(selection, present)


def selected_gpus(selection: str, present: tuple[str, ...]) -> tuple[str, ...]:
    """Return the entries of ``selection`` up to the first number that is not among ``present``."""
    chosen: list[str] = []
    for entry in (part.strip() for part in selection.split(",")):
        is_known = entry in present if entry.lstrip("-").isdigit() else bool(entry)
        if not is_known:
            break
        chosen.append(entry)
    return tuple(chosen)
