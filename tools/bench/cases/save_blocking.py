"""Blocking time of saving a checkpoint of 100 million parameters with Adam."""

from tools.bench.case import Case

SETTING = """
import os, shutil, tempfile, time, torch
torch.set_num_threads(2)
model = torch.nn.Sequential(*(torch.nn.Linear(1581, 1581) for _ in range(40)))
optimizer = torch.optim.Adam(model.parameters())
for parameter in model.parameters():
    parameter.grad = torch.full_like(parameter, 1e-3)
folder = tempfile.mkdtemp(dir=os.environ.get("BENCH_DIR"))
"""

END = """
shutil.rmtree(folder)
"""

TORCH = """
optimizer.step()
def save(number):
    path = f"{folder}/{number}.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
"""

TIMED = """
def timed(number):
    begun = time.perf_counter()
    save(number)
    duration_s = time.perf_counter() - begun
    shutil.rmtree(folder)
    os.mkdir(folder)
    return duration_s
duration_s = min([timed(number) for number in range(6)][1:])
"""


def prepared(package: str, *, steps: bool = True) -> str:
    """Return the source that prepares both with ``package``; after a step, the optimizer has a state."""
    step = "optimizer.step()" if steps else ""
    return f"""
from {package} import Accelerator
accelerator = Accelerator(cpu=True)
model, optimizer = accelerator.prepare(model, optimizer)
{step}
"""


SAVE = """
def save(number):
    accelerator.save_state(f"{folder}/{number}")
"""

case = Case(
    title="a checkpoint of 1.2 GB, the best of the second to sixth: blocking time",
    unit="s",
    variants={
        "torch.save": SETTING + TORCH + TIMED + END + "print(duration_s)",
        "ours": SETTING + prepared("accel") + SAVE + TIMED + END + "print(duration_s)",
        "peer": SETTING + prepared("accelerate") + SAVE + TIMED + END + "print(duration_s)",
    },
    baseline="torch.save",
)
