"""Averaging the weights of a model of 200 small parameters over two gloo processes."""

from tools.bench.case import Case
from tools.bench.loops import FAREWELL, TWO_RANKS

MODEL = """
import time, torch, torch.distributed as dist
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear({width}, {width}, bias=False) for _ in range(200)])
"""

PLAIN = """
dist.init_process_group("gloo")
"""

FLAT = """
flat = torch.cat([weight.detach().flatten() for weight in model.parameters()])
call = lambda: dist.all_reduce(flat)
"""

TORCHS = """
from torch.distributed.algorithms.model_averaging.utils import average_parameters
call = lambda: average_parameters(iter(model.parameters()), dist.group.WORLD)
"""

BLOCK = """
from {package} import Accelerator
from {package}.local_sgd import LocalSGD
accelerator = Accelerator(cpu=True)
model = accelerator.prepare(model)
block = LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=1)
block.__enter__()
call = block.step
"""

CLOCK = """
for _ in range(5):
    call()
durations = []
for _ in range(40):
    dist.barrier()
    begun = time.perf_counter()
    call()
    durations.append((time.perf_counter() - begun) * 1e6)
dist.barrier()
print(sorted(durations)[len(durations) // 4])  # the quieter quarter: other programs only ever add
"""


def variant(width: int, what: str) -> str:
    """Return the source of one variant, for parameters of ``width`` × ``width``."""
    return TWO_RANKS + MODEL.format(width=width) + what + CLOCK + FAREWELL


def both(width: int) -> dict[str, str]:
    """Return the variants for one size of parameters."""
    return {
        f"flat {width}": variant(width, PLAIN + FLAT),
        f"torch's {width}": variant(width, PLAIN + TORCHS),
        f"ours {width}": variant(width, BLOCK.format(package="accel")),
        f"peer {width}": variant(width, BLOCK.format(package="accelerate")),
    }


case = Case(
    title="LocalSGD synchronization of 200 parameters of 8×8 and of 32×32, two gloo processes",
    unit="µs",
    variants=both(8) | both(32),
    baseline="flat 8",
)
