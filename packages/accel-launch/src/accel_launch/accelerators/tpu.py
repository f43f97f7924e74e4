"""Google's TPU chips on this machine, from their device files."""

from __future__ import annotations

from pathlib import Path

from accel_launch.accelerators.protocol import MACHINE
from accel_launch.accelerators.reading import entries


def num_tpu_chips(root: Path = MACHINE) -> int:
    """Return the number of TPU chips of this machine; they are asked for, never found by chance."""
    older = entries(root / "dev", r"accel(\d+)")
    return len(older or entries(root / "dev" / "vfio", r"(\d+)"))
