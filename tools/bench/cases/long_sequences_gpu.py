"""Tokens per second at 8k to 64k tokens, each GPU with a sequence of its own, the model in shards over all of them."""

from tools.bench.case import Case
from tools.bench.cases.fsdp2_gpu import NO_GPU
from tools.bench.long_sequences import LENGTHS, run

case = Case(
    title="0.44 billion parameters in shards, bf16, blocks compiled, a sequence per GPU",
    unit="tokens/s",
    variants={
        f"{name} {length}": run(variant, length)
        for length in LENGTHS
        for name, variant in (("raw fully_shard", "raw"), ("ours", "ours"))
    },
    baseline=f"raw fully_shard {LENGTHS[0]}",
    obstacle=NO_GPU,
)
