"""A structure of 24 small tensors, and 1,000 integers, between two gloo processes on this machine."""

from tools.bench.case import Case
from tools.bench.loops import FAREWELL, TWO_RANKS

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
data = {f"k{i}": torch.randn(8, 16) for i in range(24)}
ragged = {key: torch.randn(8 + rank, 16) for key in data}
flat = torch.cat([tensor.view(-1) for tensor in data.values()])
room = torch.empty(2 * len(flat))
integers = list(range(1000))
objects = [None, None]
"""

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


def flat(call: str) -> str:
    """Return a variant that makes one plain call of torch.distributed."""
    return START + PLAIN + DATA + f"call = lambda: {call}\n" + CLOCK + FAREWELL


def through(package: str, operation: str, argument: str) -> str:
    """Return a variant that calls an operation of ``package``."""
    state = STATE.format(package=package, operation=operation)
    return START + state + DATA + f"call = lambda: {operation}({argument})\n" + CLOCK + FAREWELL


OPERATIONS = {
    "gather": "data",
    "reduce": "data",
    "broadcast": "data",
    "pad_across_processes": "ragged",
    "gather_object": "integers",
}

case = Case(
    title="24 tensors of 128 floats, and 1,000 integers, between two gloo processes",
    unit="µs",
    variants={
        "flat gather": flat("dist.all_gather_single(room, flat)"),
        "flat reduce": flat("dist.all_reduce(flat)"),
        "flat broadcast": flat("dist.broadcast(flat, 0)"),
        "flat objects": flat("dist.all_gather_object(objects, integers)"),
        **{f"ours {name}": through("accel", name, argument) for name, argument in OPERATIONS.items()},
        **{f"peer {name}": through("accelerate", name, argument) for name, argument in OPERATIONS.items()},
    },
    baseline="flat gather",
)
