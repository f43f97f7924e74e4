"""Overhead of a prepared loader per batch, on one process."""

from tools.bench.case import Case

BODY = """
import statistics, time
import torch
from torch.utils.data import DataLoader
torch.set_num_threads(1)
loader = DataLoader(range(64_000), batch_size=16, collate_fn=list)
{prepare}
durations = []
for _ in range(5):
    begun = time.perf_counter()
    for batch in loader:
        pass
    durations.append((time.perf_counter() - begun) * 1e6 / 4000)
print(min(durations))
"""
THROUGH = "from {package} import Accelerator\nloader = Accelerator(cpu=True).prepare(loader)"

case = Case(
    title="a batch of 16 integers from a loader in one process",
    unit="µs",
    variants={
        "plain": BODY.format(prepare=""),
        "ours": BODY.format(prepare=THROUGH.format(package="accel")),
        "peer": BODY.format(prepare=THROUGH.format(package="accelerate")),
    },
    baseline="plain",
)
