"""Memory that `save_model` takes of 402 MB that two gloo processes share by ZeRO 3: of the writer, and of the other.

The highest resident memory over that at the start, when each process has its shard. The largest tensor has 8 MiB.
Freed memory is returned to the system at once, from the start: else the save hides in memory freed by building,
or only the memory that it frees would be counted.
"""

from tools.bench.case import Case
from tools.bench.deepspeed_engines import NO_DEEPSPEED, RAW, SETTING, accelerator_of
from tools.bench.loops import FAREWELL, TWO_RANKS
from tools.bench.sharded_saves import END, MEASURED, MODEL

OPTIMIZER = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""

PLAIN = """
dist.init_process_group("gloo")
model = engine_of(model, optimizer)
def save(path):
    model.save_16bit_model(str(path))
"""

PREPARED = """
model, optimizer = accelerator.prepare(model, optimizer)
def save(path):
    accelerator.save_model(model, path)
"""

GIVEN_BACK = """
import ctypes
ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: larger pieces have separate mappings
"""

WAYS = {
    "raw": RAW + PLAIN,
    "ours": accelerator_of("accel") + PREPARED,
    "peer": accelerator_of("accelerate") + PREPARED,
}


def source(way: str, rank: int) -> str:
    """Return a variant."""
    pieces = [GIVEN_BACK, TWO_RANKS, "STAGE = 3\n", SETTING, MODEL, OPTIMIZER, WAYS[way]]
    return "".join([*pieces, MEASURED.format(rank=rank), END, FAREWELL])


case = Case(
    title="memory that `save_model` of 402 MB under ZeRO 3 takes above the start, by rank (largest tensor: 8 MiB)",
    unit="MiB",
    variants={
        f"{way}, {who}": source(way, rank) for way in WAYS for rank, who in enumerate(("writer", "other"))
    },
    baseline="ours, writer",
    obstacle=NO_DEEPSPEED,
)
