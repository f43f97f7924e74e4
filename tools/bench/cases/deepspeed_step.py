"""A step of a model that two gloo processes share through DeepSpeed: what the strategy adds to the engine.

Each variant trains a second copy with a plain engine in the same processes, step by step in turn, and is divided by it.
"""

from tools.bench.case import Case
from tools.bench.deepspeed_engines import NO_DEEPSPEED, RAW, SETTING, accelerator_of
from tools.bench.loops import FAREWELL, TWO_RANKS
from tools.bench.steps_beside import CLOCK, MODEL

BESIDE = """
import types
def plain():
    engine = engine_of(*with_optimizer(copy.deepcopy(initial)))
    stepping = types.SimpleNamespace(step=engine.step, zero_grad=lambda: None)
    return engine, stepping, engine.backward
beside = plain
"""

PLAIN = """
dist.init_process_group("gloo")
model, optimizer, backward = plain()
"""

PREPARED = """
model, optimizer = accelerator.prepare(*with_optimizer(copy.deepcopy(initial)))
assert "DeepSpeed" in type(model).__name__, type(model)
backward = accelerator.backward
"""

WAYS = {
    "raw": PLAIN,
    "ours": accelerator_of("accel") + PREPARED,
    "peer": accelerator_of("accelerate") + PREPARED,
}


def source(way: str, stage: int) -> str:
    """Return a variant."""
    return "".join([TWO_RANKS, f"STAGE = {stage}\n", SETTING, MODEL, RAW, BESIDE, WAYS[way], CLOCK, FAREWELL])


case = Case(
    title="one step of twelve blocks in DeepSpeed's engines on two gloo processes, medians of 60",
    unit="x a plain engine in the same processes",
    variants={f"{way}, ZeRO {stage}": source(way, stage) for stage in (2, 3) for way in WAYS},
    baseline="raw, ZeRO 2",
    obstacle=NO_DEEPSPEED,
)
