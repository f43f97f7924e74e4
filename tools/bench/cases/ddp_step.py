"""Data parallelism over two gloo processes, per micro-batch: four per optimizer step."""

from tools.bench.case import Case
from tools.bench.cases.accumulate import ACCUMULATED
from tools.bench.loops import CLOCK, DATA, FAREWELL, SETTING, TWO_RANKS, prepared

PLAIN = """
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(model)
sampler = torch.utils.data.DistributedSampler(data, shuffle=False)
loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
def loop():
    for number, (inputs, labels) in enumerate(loader, start=1):
        if number % 4:
            with model.no_sync():
                (cross_entropy(model(inputs), labels) / 4).backward()
        else:
            (cross_entropy(model(inputs), labels) / 4).backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        yield
"""

HALF_BATCHES = "loader = torch.utils.data.DataLoader(data, batch_size=4)\n"


def through(package: str) -> str:
    """Return the variant that trains with the ``Accelerator`` of ``package``."""
    ready = HALF_BATCHES + prepared(package, gradient_accumulation_steps=4)
    return TWO_RANKS + SETTING + DATA + ready + ACCUMULATED + CLOCK + FAREWELL


case = Case(
    title="one micro-batch of four per optimizer step, DDP on two gloo processes",
    unit="µs",
    variants={
        "plain": TWO_RANKS + SETTING + DATA + PLAIN + CLOCK + FAREWELL,
        "ours": through("accel"),
        "peer": through("accelerate"),
    },
    baseline="plain",
)
