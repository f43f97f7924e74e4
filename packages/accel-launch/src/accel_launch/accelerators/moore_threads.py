"""Moore Threads' GPUs, from their device files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from accel_launch.accelerators.choosing import chosen, ordinals
from accel_launch.accelerators.installed import is_installed
from accel_launch.accelerators.reading import entries


class MooreThreads:
    """``MUSA_VISIBLE_DEVICES``: numbers."""

    name: ClassVar[str] = "musa"
    variable: ClassVar[str] = "MUSA_VISIBLE_DEVICES"
    several: ClassVar[str] = "MULTI_MUSA"

    def is_usable(self) -> bool:
        return is_installed("torch_musa")

    def visible(self, environ: Mapping[str, str], root: Path) -> tuple[str, ...]:
        names = ordinals(len(entries(root / "dev", r"mtgpu\.(\d+)")))
        return tuple(names[place] for place in chosen(environ.get(self.variable), names))
