"""Pieces of source that cases about training loops share."""

from __future__ import annotations

SETTING = """
import time, torch
from torch.nn.functional import cross_entropy
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10**9)
"""

DATA = """
data = torch.utils.data.TensorDataset(torch.randn(16_000, 16), torch.randint(4, (16_000,)))
loader = torch.utils.data.DataLoader(data, batch_size=8)
"""

CLOCK = """
turns = loop()
for _ in range(200):
    next(turns)
durations = []
for _ in range(36):
    begun = time.perf_counter()
    for _ in range(50):
        next(turns)
    durations.append((time.perf_counter() - begun) / 50 * 1e6)
print(sorted(durations)[len(durations) // 4])  # the quieter quarter: other programs only ever add
"""
"""Time of one turn of ``loop()``, a generator that yields after each batch."""

STEP = """
def loop():
    for inputs, labels in loader:
        backward(cross_entropy(model(inputs), labels))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        yield
"""

TWO_RANKS = """
import os, socket, sys
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
child = os.fork()
rank = 0 if child else 1
if rank:
    sys.stdout = open(os.devnull, "w")
os.environ |= {
    "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "yes",
}
"""
"""Two processes from one: the following code runs in both, and `FAREWELL` lets the second one go first."""

FAREWELL = """
sys.stdout.flush()
if rank:
    os._exit(0)
os.waitpid(child, 0)
"""


def prepared(package: str, **options: object) -> str:
    """Return source that prepares everything with the ``Accelerator`` of ``package``."""
    words = ", ".join(f"{name}={value!r}" for name, value in {"cpu": True, **options}.items())
    return f"""
from {package} import Accelerator
accelerator = Accelerator({words})
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
backward = accelerator.backward
"""
