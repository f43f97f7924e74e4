"""A structure of 4 large tensors between two gloo processes on this machine."""

from tools.bench.case import Case
from tools.bench.cases.collectives import CLOCK, PLAIN, STATE, TWO_RANKS

DATA = """
data = {f"k{i}": torch.randn(1 << 20) for i in range(4)}
ragged = {key: torch.randn((1 << 20) + 64 * rank) for key in data}
flat = torch.cat(list(data.values()))
room = torch.empty(2 * len(flat))
"""
FEWER = CLOCK.replace("range(30)", "range(3)").replace("range(200)", "range(20)")
OPERATIONS = {"gather": "data", "reduce": "data", "broadcast": "data", "pad_across_processes": "ragged"}


def through(package: str, operation: str, argument: str) -> str:
    """Return a variant that calls an operation of ``package``."""
    state = STATE.format(package=package, operation=operation)
    return TWO_RANKS + state + DATA + f"call = lambda: {operation}({argument})\n" + FEWER


case = Case(
    title="4 tensors of 4 MiB between two gloo processes",
    unit="µs",
    variants={
        "flat gather": TWO_RANKS
        + PLAIN
        + DATA
        + "call = lambda: dist.all_gather_single(room, flat)\n"
        + FEWER,
        "flat reduce": TWO_RANKS + PLAIN + DATA + "call = lambda: dist.all_reduce(flat)\n" + FEWER,
        "flat broadcast": TWO_RANKS + PLAIN + DATA + "call = lambda: dist.broadcast(flat, 0)\n" + FEWER,
        **{f"ours {name}": through("accel", name, argument) for name, argument in OPERATIONS.items()},
        **{f"peer {name}": through("accelerate", name, argument) for name, argument in OPERATIONS.items()},
    },
    baseline="flat gather",
)
