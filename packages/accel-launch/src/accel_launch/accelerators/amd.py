"""AMD's GPUs, from the kernel driver's list of compute nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from accel_launch.accelerators.choosing import chosen, ordinals
from accel_launch.accelerators.reading import entries, fields_of, is_built_for, text_of

_NODES = "sys/class/kfd/kfd/topology/nodes"


class Amd:
    """``ROCR_VISIBLE_DEVICES`` (numbers, ``GPU-…``), and of what it leaves ``HIP_VISIBLE_DEVICES``.

    Where the latter is not set, HIP reads ``CUDA_VISIBLE_DEVICES`` in its place.
    """

    name: ClassVar[str] = "amd"
    variable: ClassVar[str] = "HIP_VISIBLE_DEVICES"
    several: ClassVar[str] = "MULTI_GPU"

    def is_usable(self) -> bool:
        return is_built_for("hip")

    def visible(self, environ: Mapping[str, str], root: Path) -> tuple[str, ...]:
        nodes = [
            node for node in entries(root / _NODES, r"(\d+)") if text_of(node / "gpu_id") not in ("", "0")
        ]
        uuids = [_uuid(node) for node in nodes]
        left = chosen(environ.get("ROCR_VISIBLE_DEVICES"), ordinals(len(nodes)), uuids)
        names = ordinals(len(left))
        selection = environ.get(self.variable, environ.get("CUDA_VISIBLE_DEVICES"))
        return tuple(names[place] for place in chosen(selection, names, [uuids[place] for place in left]))


def _uuid(node: Path) -> str:
    number = fields_of(node / "properties").get("unique_id", "0")
    return f"GPU-{int(number):016x}" if number.isdigit() else ""
