"""What accelerators compute at most: dense matrix products per second, from the data sheets of their makers."""

from __future__ import annotations

from typing import NamedTuple

_NVIDIA = "https://www.nvidia.com/en-us/data-center/"
_AMD = "https://www.amd.com/en/products/accelerators/instinct/"


class Peak(NamedTuple):
    """The peak of one kind of device.

    ``name`` is part of what torch calls it, ``flops`` counts operations in bf16 (fp16 where there is no bf16), and
    ``source`` is the data sheet.
    """

    name: str
    flops: float
    source: str


# A longer name before one that is part of it. Without sparsity, which data sheets like to count twice.
PEAKS: tuple[Peak, ...] = (
    Peak("GB200", 2500e12, f"{_NVIDIA}gb200-nvl72/"),
    Peak("B200", 2250e12, f"{_NVIDIA}dgx-b200/"),
    Peak("H200", 989e12, f"{_NVIDIA}h200/"),
    Peak("H100 PCIe", 756e12, f"{_NVIDIA}h100/"),
    Peak("H100 NVL", 835e12, f"{_NVIDIA}h100/"),
    Peak("H100", 989e12, f"{_NVIDIA}h100/"),
    Peak("A100", 312e12, f"{_NVIDIA}a100/"),
    Peak("L40S", 362e12, f"{_NVIDIA}l40s/"),
    Peak("L40", 181e12, f"{_NVIDIA}l40/"),
    Peak("L4", 121e12, f"{_NVIDIA}l4/"),
    Peak("V100", 125e12, f"{_NVIDIA}v100/"),
    Peak("MI300X", 1307e12, f"{_AMD}mi300/mi300x.html"),
)


def peak_flops(device_name: str) -> float | None:
    """Return the operations per second of a device in bf16, None where the table does not know it.

    Args:
        device_name: As `torch.cuda.get_device_name` gives it.
    """
    return next((peak.flops for peak in PEAKS if peak.name in device_name), None)
