"""Tokens per second at 8k to 64k tokens, all GPUs share each sequence: torch's `context_parallel`, or through accel."""

from tools.bench.case import Case
from tools.bench.long_sequences import LENGTHS, run

TOO_FEW_GPUS = """
import torch
count = torch.cuda.device_count()
print("" if count > 1 else f"{count} GPUs here, and a sequence is shared between two or more")
"""

case = Case(
    title="0.44 billion parameters in shards, bf16, one sequence for all GPUs",
    unit="tokens/s",
    variants={
        f"{name} {length}": run(variant, length)
        for length in LENGTHS
        for name, variant in (("raw context_parallel", "raw shared"), ("ours", "ours shared"))
    },
    baseline=f"raw context_parallel {LENGTHS[0]}",
    obstacle=TOO_FEW_GPUS,
)
