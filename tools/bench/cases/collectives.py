"""24 small tensors, 4 large ones, and 1,000 integers, between two gloo processes on this machine."""

from tools.bench.measure import Case
from tools.bench.two_ranks import FAREWELL, TWO_RANKS

START = (
    TWO_RANKS
    + """
import statistics, time, torch, torch.distributed as dist
torch.set_num_threads(1)
"""
)

STATE = (
    "from {package} import PartialState\nPartialState(cpu=True)\nfrom {package}.utils import {operation}\n"
)
PLAIN = "dist.init_process_group('gloo')\n"

DATA = """
flat = torch.cat([tensor.view(-1) for tensor in data.values()])
room = torch.empty(2 * len(flat))
integers = list(range(1000))
"""

SMALL = (
    """
data = {f"k{i}": torch.randn(8, 16) for i in range(24)}
ragged = {key: torch.randn(8 + rank, 16) for key in data}
"""
    + DATA
)

LARGE = (
    """
data = {f"k{i}": torch.randn(1 << 20) for i in range(4)}
ragged = {key: torch.randn((1 << 20) + 64 * rank) for key in data}
"""
    + DATA
)

CLOCK = """
for _ in range(30):
    call()
durations = []
for _ in range(200):
    dist.barrier()
    begun = time.perf_counter()
    call()
    durations.append((time.perf_counter() - begun) * 1e6)
print(statistics.median(durations))
dist.barrier()
dist.destroy_process_group()
"""


FEWER = CLOCK.replace("range(30)", "range(3)").replace("range(200)", "range(20)")
FLAT = {
    "gather": "dist.all_gather_single(room, flat)",
    "reduce": "dist.all_reduce(flat)",
    "broadcast": "dist.broadcast(flat, 0)",
}
OPERATIONS = {"gather": "data", "reduce": "data", "broadcast": "data", "pad_across_processes": "ragged"}


def variant(prepared: str, call: str, clock: str = CLOCK) -> str:
    """Return the source that times one call."""
    return START + prepared + f"call = lambda: {call}\n" + clock + FAREWELL


def through(
    name: str, package: str, data: str, operations: dict[str, str], clock: str = CLOCK
) -> dict[str, str]:
    """Return variants that call the operations of ``package``."""
    return {
        f"{name} {each}": variant(
            STATE.format(package=package, operation=each) + data, f"{each}({what})", clock
        )
        for each, what in operations.items()
    }


CASES = {
    "collectives": Case(
        "24 tensors of 128 floats, and 1,000 integers, between two gloo processes",
        "µs",
        {
            "flat gather": variant(PLAIN + SMALL, FLAT["gather"]),
            "flat reduce": variant(PLAIN + SMALL, FLAT["reduce"]),
            "flat broadcast": variant(PLAIN + SMALL, FLAT["broadcast"]),
            "flat objects": variant(PLAIN + SMALL, "dist.all_gather_object([None, None], integers)"),
            **through("ours", "accel", SMALL, {**OPERATIONS, "gather_object": "integers"}),
            **through("peer", "accelerate", SMALL, {**OPERATIONS, "gather_object": "integers"}),
        },
    ),
    "large_tensors": Case(
        "4 tensors of 4 MiB between two gloo processes",
        "µs",
        {
            **{f"flat {name}": variant(PLAIN + LARGE, call, FEWER) for name, call in FLAT.items()},
            **through("ours", "accel", LARGE, OPERATIONS, FEWER),
            **through("peer", "accelerate", LARGE, OPERATIONS, FEWER),
        },
    ),
}
