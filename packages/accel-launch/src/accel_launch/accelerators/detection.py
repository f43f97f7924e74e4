"""Finding the accelerators that a process would use: those of the first vendor that has some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from accel_launch.accelerators.amd import Amd
from accel_launch.accelerators.device_files import ASCEND, CAMBRICON, HABANA, MOORE_THREADS, TECORIGIN
from accel_launch.accelerators.intel import Intel
from accel_launch.accelerators.neuron import Neuron
from accel_launch.accelerators.nvidia import Nvidia
from accel_launch.accelerators.protocol import MACHINE, Accelerators, Vendor

# In the order in which a run would take them.
VENDORS: tuple[Vendor, ...] = (
    Nvidia(),
    Amd(),
    Intel(),
    ASCEND,
    CAMBRICON,
    MOORE_THREADS,
    HABANA,
    TECORIGIN,
    Neuron(),
)


def find_accelerators(
    environ: Mapping[str, str], *, root: Path = MACHINE, vendors: Sequence[Vendor] = VENDORS
) -> Accelerators:
    """Return the accelerators that a process with this environment would use, which may be none.

    Those that the installed torch cannot work with do not count: a run would not use them.
    """
    for vendor in vendors:
        names = vendor.visible(environ, root)
        if names and vendor.is_usable():
            return Accelerators(vendor.name, names, vendor.variable, vendor.several)
    return Accelerators()


def present_accelerators(*, root: Path = MACHINE, vendors: Sequence[Vendor] = VENDORS) -> dict[str, int]:
    """Return how many accelerators the machine has of each vendor, whatever torch and variables say of them."""
    counted = {vendor.name: len(vendor.visible({}, root)) for vendor in vendors}
    return {name: number for name, number in counted.items() if number}
