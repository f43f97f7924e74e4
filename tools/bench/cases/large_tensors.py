"""A structure of 4 large tensors between two gloo processes on this machine."""

from tools.bench.case import Case
from tools.bench.cases.collectives import CLOCK, PLAIN, START, STATE
from tools.bench.loops import FAREWELL

DATA = """
data = {f"k{i}": torch.randn(1 << 20) for i in range(4)}
ragged = {key: torch.randn((1 << 20) + 64 * rank) for key in data}
flat = torch.cat(list(data.values()))
room = torch.empty(2 * len(flat))
"""
FEWER = CLOCK.replace("range(30)", "range(3)").replace("range(200)", "range(20)")
OPERATIONS = {"gather": "data", "reduce": "data", "broadcast": "data", "pad_across_processes": "ragged"}
FLAT = {
    "gather": "dist.all_gather_single(room, flat)",
    "reduce": "dist.all_reduce(flat)",
    "broadcast": "dist.broadcast(flat, 0)",
}


def through(package: str, operation: str) -> str:
    """Return a variant that calls an operation of ``package``."""
    state = STATE.format(package=package, operation=operation)
    call = f"call = lambda: {operation}({OPERATIONS[operation]})\n"
    return START + state + DATA + call + FEWER + FAREWELL


case = Case(
    title="4 tensors of 4 MiB between two gloo processes",
    unit="µs",
    variants={
        **{
            f"flat {name}": START + PLAIN + DATA + f"call = lambda: {call}\n" + FEWER + FAREWELL
            for name, call in FLAT.items()
        },
        **{f"ours {name}": through("accel", name) for name in OPERATIONS},
        **{f"peer {name}": through("accelerate", name) for name in OPERATIONS},
    },
    baseline="flat gather",
)
