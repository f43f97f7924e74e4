from __future__ import annotations

import pytest

from accel.profiling import peak_flops


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("AMD Instinct MI300X", 1307e12),
        ("NVIDIA L40", 181e12),
        ("NVIDIA GB200", 2500e12),
        ("NVIDIA GeForce RTX 3090", None),
        ("", None),
    ],
)
def test_devices_are_known_by_a_part_of_their_name(name, flops):
    assert peak_flops(name) == flops
