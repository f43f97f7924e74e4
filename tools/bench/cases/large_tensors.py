"""A structure of 4 large tensors between two gloo processes on this machine."""

from tools.bench.case import Case
from tools.bench.cases.collectives import CLOCK, PLAIN, STATE, TWO_RANKS

DATA = """
data = {{f"k{{i}}": torch.randn({num_elements}) for i in range({num_tensors})}}
ragged = {{key: torch.randn({num_elements} + 64 * rank) for key in data}}
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


def variants(*, num_tensors: int, num_elements: int) -> dict[str, str]:
    """Return the variants for a structure of tensors of one size."""
    data = DATA.format(num_tensors=num_tensors, num_elements=num_elements)

    def through(package: str, operation: str) -> str:
        state = STATE.format(package=package, operation=operation)
        return TWO_RANKS + state + data + f"call = lambda: {operation}({OPERATIONS[operation]})\n" + FEWER

    return {
        **{
            f"flat {name}": TWO_RANKS + PLAIN + data + f"call = lambda: {call}\n" + FEWER
            for name, call in FLAT.items()
        },
        **{f"ours {name}": through("accel", name) for name in OPERATIONS},
        **{f"peer {name}": through("accelerate", name) for name in OPERATIONS},
    }


case = Case(
    title="4 tensors of 4 MiB between two gloo processes",
    unit="µs",
    variants=variants(num_tensors=4, num_elements=1 << 20),
    baseline="flat gather",
)
