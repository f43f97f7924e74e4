"""Batches that rank 0 reads and hands to two gloo processes: 16 samples of 256 floats each."""

from tools.bench.case import Case
from tools.bench.cases.collectives import PLAIN, START
from tools.bench.loops import FAREWELL

DATA = """
from torch.utils.data import DataLoader
rows = torch.randn(6400, 256)
"""
READ = """
from {package} import Accelerator, DataLoaderConfiguration
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
loader = accelerator.prepare(DataLoader(rows, batch_size=16))
def epoch():
    return sum(1 for _ in loader)
"""
RAW = """
batch = rows[:32].clone()
def epoch():
    for _ in range(200):
        dist.broadcast(batch, 0)
    return 200
"""
CLOCK = """
epoch()
durations = []
for _ in range(7):
    dist.barrier()
    begun = time.perf_counter()
    batches = epoch()
    durations.append((time.perf_counter() - begun) * 1e3 / batches)
print(statistics.median(durations))
dist.barrier()
dist.destroy_process_group()
"""

case = Case(
    title="a batch of 16 samples of 256 floats, dispatched to two gloo processes",
    unit="ms",
    variants={
        "raw broadcast": START + PLAIN + DATA + RAW + CLOCK + FAREWELL,
        "ours": START + DATA + READ.format(package="accel") + CLOCK + FAREWELL,
        "peer": START + DATA + READ.format(package="accelerate") + CLOCK + FAREWELL,
    },
    baseline="raw broadcast",
)
