"""Vendors whose accelerators are numbered files in ``/dev``, and whose variable chooses among the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from accel_launch.accelerators.choosing import chosen, ordinals
from accel_launch.accelerators.protocol import MACHINE
from accel_launch.accelerators.reading import entries, is_installed


@dataclass(frozen=True, slots=True)
class DeviceFiles:
    """One such vendor.

    ``files`` are folder and name of its files, the number as a group; of several, the first that exist count.
    ``package`` is what brings it to torch.
    """

    name: str
    variable: str
    several: str
    package: str
    files: tuple[tuple[str, str], ...]

    def is_usable(self) -> bool:
        return is_installed(self.package)

    def visible(self, environ: Mapping[str, str], root: Path) -> tuple[str, ...]:
        found = (entries(root / folder, pattern) for folder, pattern in self.files)
        names = ordinals(len(next(filter(None, found), [])))
        return tuple(names[place] for place in chosen(environ.get(self.variable), names))


ASCEND = DeviceFiles(
    "npu", "ASCEND_RT_VISIBLE_DEVICES", "MULTI_NPU", "torch_npu", (("dev", r"davinci(\d+)"),)
)
CAMBRICON = DeviceFiles(
    "mlu", "MLU_VISIBLE_DEVICES", "MULTI_MLU", "torch_mlu", (("dev", r"cambricon_dev(\d+)"),)
)
MOORE_THREADS = DeviceFiles(
    "musa", "MUSA_VISIBLE_DEVICES", "MULTI_MUSA", "torch_musa", (("dev", r"mtgpu\.(\d+)"),)
)
HABANA = DeviceFiles(
    "hpu",
    "HABANA_VISIBLE_MODULES",
    "MULTI_HPU",
    "habana_frameworks",
    # The kernel's own driver has them in a folder; the one before it did not.
    (("dev/accel", r"accel(\d+)"), ("dev", r"hl(\d+)")),
)
TECORIGIN = DeviceFiles(
    "sdaa", "SDAA_VISIBLE_DEVICES", "MULTI_SDAA", "torch_sdaa", (("dev", r"tcaicard(\d+)"),)
)


def num_tpu_chips(root: Path = MACHINE) -> int:
    """Return the number of TPU chips of this machine; they are asked for, never found by chance."""
    older = entries(root / "dev", r"accel(\d+)")
    return len(older or entries(root / "dev" / "vfio", r"(\d+)"))
