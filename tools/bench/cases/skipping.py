"""The first batch of a loader that skips 180,000 of its 200,000 batches."""

from tools.bench.case import Case

BODY = """
import statistics, time
import torch
from torch.utils.data import DataLoader
torch.set_num_threads(1)
from {package} import Accelerator
loader = Accelerator(cpu=True).prepare(DataLoader(range(200_000), batch_size=1, collate_fn=list))
next(iter(loader))
durations = []
for _ in range(9):
    begun = time.perf_counter()
    first = next(iter({source}))
    durations.append((time.perf_counter() - begun) * 1e3)
print(statistics.median(durations))
"""
SKIP = "{package}.skip_first_batches(loader, 180_000)"

case = Case(
    title="the first batch after skipping 180,000 of 200,000",
    unit="ms",
    variants={
        "ours, fresh loader": BODY.format(package="accel", source="loader"),
        "ours, skipped": "import accel\n" + BODY.format(package="accel", source=SKIP.format(package="accel")),
        "peer, fresh loader": BODY.format(package="accelerate", source="loader"),
        "peer, skipped": "import accelerate\n"
        + BODY.format(package="accelerate", source=SKIP.format(package="accelerate")),
    },
    baseline="ours, fresh loader",
)
