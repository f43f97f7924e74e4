"""Intel's GPUs, from the kernel's list of graphics cards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from accel_launch.accelerators.choosing import ordinals
from accel_launch.accelerators.reading import entries, is_built_for, text_of

_VENDOR = "0x8086"
# Where the graphics of a processor always are; they share its memory and are nothing to train on.
_INTEGRATED = "0000:00:02.0"


class Intel:
    """``ZE_AFFINITY_MASK``: numbers, or ``0.1`` for the second tile of the first; empty chooses all."""

    name: ClassVar[str] = "intel"
    variable: ClassVar[str] = "ZE_AFFINITY_MASK"
    several: ClassVar[str] = "MULTI_XPU"

    def is_usable(self) -> bool:
        return is_built_for("xpu")

    def visible(self, environ: Mapping[str, str], root: Path) -> tuple[str, ...]:
        cards = [card / "device" for card in entries(root / "sys" / "class" / "drm", r"card(\d+)")]
        own = [
            card
            for card in cards
            if text_of(card / "vendor") == _VENDOR and card.resolve().name != _INTEGRATED
        ]
        present = ordinals(sum(len(entries(card, r"tile(\d+)")) or 1 for card in own))
        mask = environ.get(self.variable, "").strip()
        if not mask:
            return present
        asked = dict.fromkeys(part.strip() for part in mask.split(","))
        return tuple(part for part in asked if part.partition(".")[0] in present)
