"""Habana's HPUs (Gaudi), from their device files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from accel_launch.accelerators.choosing import chosen, ordinals
from accel_launch.accelerators.installed import is_installed
from accel_launch.accelerators.reading import entries


class Habana:
    """``HABANA_VISIBLE_MODULES``: numbers."""

    name: ClassVar[str] = "hpu"
    variable: ClassVar[str] = "HABANA_VISIBLE_MODULES"
    several: ClassVar[str] = "MULTI_HPU"

    def is_usable(self) -> bool:
        return is_installed("habana_frameworks")

    def visible(self, environ: Mapping[str, str], root: Path) -> tuple[str, ...]:
        # The kernel's own driver has them in a folder; the one before it did not.
        newer = entries(root / "dev" / "accel", r"accel(\d+)")
        names = ordinals(len(newer or entries(root / "dev", r"hl(\d+)")))
        return tuple(names[place] for place in chosen(environ.get(self.variable), names))
