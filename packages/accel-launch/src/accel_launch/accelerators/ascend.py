"""Huawei's Ascend NPUs, from their device files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from accel_launch.accelerators.choosing import chosen, ordinals
from accel_launch.accelerators.installed import is_installed
from accel_launch.accelerators.reading import entries


class Ascend:
    """``ASCEND_RT_VISIBLE_DEVICES``: numbers."""

    name: ClassVar[str] = "npu"
    variable: ClassVar[str] = "ASCEND_RT_VISIBLE_DEVICES"
    several: ClassVar[str] = "MULTI_NPU"

    def is_usable(self) -> bool:
        return is_installed("torch_npu")

    def visible(self, environ: Mapping[str, str], root: Path) -> tuple[str, ...]:
        names = ordinals(len(entries(root / "dev", r"davinci(\d+)")))
        return tuple(names[place] for place in chosen(environ.get(self.variable), names))
