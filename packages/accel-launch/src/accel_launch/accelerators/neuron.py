"""The cores of AWS's Trainium and Inferentia chips (Neuron)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from accel_launch.accelerators.choosing import ordinals
from accel_launch.accelerators.reading import entries, is_installed, text_of

_CORES_OF_A_CHIP = 2
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


class Neuron:
    """``NEURON_RT_VISIBLE_CORES``: numbers and ranges, as in ``0-3,8``; else ``NEURON_RT_NUM_CORES`` of them."""

    name: ClassVar[str] = "neuron"
    variable: ClassVar[str] = "NEURON_RT_VISIBLE_CORES"
    several: ClassVar[str] = "MULTI_NEURON"

    def is_usable(self) -> bool:
        return is_installed("torch_neuronx")

    def visible(self, environ: Mapping[str, str], root: Path) -> tuple[str, ...]:
        chips = entries(root / "dev", r"neuron(\d+)")
        present = ordinals(sum(_num_cores(root, chip.name) for chip in chips))
        selection = environ.get(self.variable)
        if selection is not None:
            return tuple(core for core in dict.fromkeys(_listed(selection)) if core in present)
        number = environ.get("NEURON_RT_NUM_CORES", "")
        return present[: int(number)] if number.isdigit() else present


def _num_cores(root: Path, chip: str) -> int:
    told = text_of(root / "sys" / "devices" / "virtual" / "neuron_device" / chip / "core_count")
    return int(told) if told.isdigit() else _CORES_OF_A_CHIP


def _listed(selection: str) -> Iterator[str]:
    for part in selection.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            return
        first = int(match[1])
        yield from (str(core) for core in range(first, int(match[2] or first) + 1))
