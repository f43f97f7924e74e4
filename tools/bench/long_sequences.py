"""Source that cases about long sequences on GPUs share."""

from __future__ import annotations

LENGTHS = (8_192, 16_384, 32_768, 65_536)


def run(variant: str, length: int) -> str:
    """Return source that prints the tokens per second of all GPUs here, of a variant of `sharded_training`."""
    return f"""
import torch
from dataclasses import replace
from tools.bench.sharded_training import LONG, measured
if __name__ == "__main__":
    size = replace(LONG, length={length})
    print(measured({variant!r}, size, num_ranks=torch.cuda.device_count(), device_type="cuda"))
"""
