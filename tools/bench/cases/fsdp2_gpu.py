"""Tokens per second of a sharded model of 0.94 billion parameters, its blocks compiled, on all GPUs of the machine."""

from tools.bench.case import Case

RUN = """
import torch
from tools.bench.sharded_training import ONE_BILLION, measured
if __name__ == "__main__":
    print(measured("{variant}", ONE_BILLION, num_ranks=torch.cuda.device_count(), device_type="cuda"))
"""

NO_GPU = """
import torch
print("" if torch.cuda.is_available() else "no GPU here")
"""

case = Case(
    title="0.94 billion parameters in shards, bf16, blocks compiled, batches of 2 x 2048 tokens per GPU",
    unit="tokens/s",
    variants={"raw fully_shard": RUN.format(variant="raw"), "ours": RUN.format(variant="ours")},
    baseline="raw fully_shard",
    obstacle=NO_GPU,
)
