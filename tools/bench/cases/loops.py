"""Steps of a tiny model, everything prepared, and how long until an ``Accelerator`` is constructed."""

from tools.bench.measure import Case
from tools.bench.two_ranks import FAREWELL, TWO_RANKS

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


def prepared(package: str, **options: object) -> str:
    """Return source that prepares everything with the ``Accelerator`` of ``package``."""
    words = ", ".join(f"{name}={value!r}" for name, value in {"cpu": True, **options}.items())
    return f"""
from {package} import Accelerator
accelerator = Accelerator({words})
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
backward = accelerator.backward
"""


ACCUMULATED = """
def loop():
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            accelerator.backward(cross_entropy(model(inputs), labels))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        yield
"""


PLAIN_DDP = """
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


def accumulated(package: str) -> str:
    """Return the variant that trains on two ranks with the ``Accelerator`` of ``package``."""
    half_batches = "loader = torch.utils.data.DataLoader(data, batch_size=4)\n"
    ready = prepared(package, gradient_accumulation_steps=4)
    return TWO_RANKS + SETTING + DATA + half_batches + ready + ACCUMULATED + CLOCK + FAREWELL


READY = """
import time
import torch
begun = time.perf_counter()
from {package} import Accelerator
Accelerator({arguments})
print((time.perf_counter() - begun) * 1e3)
"""

CASES = {
    "train_loop": Case(
        "one training step of a tiny model, with scheduler and loader",
        "µs",
        {
            "plain": SETTING + DATA + "backward = torch.Tensor.backward\n" + STEP + CLOCK,
            "ours": SETTING + DATA + prepared("accel") + STEP + CLOCK,
            "peer": SETTING + DATA + prepared("accelerate") + STEP + CLOCK,
        },
    ),
    "ddp_step": Case(
        "one micro-batch of four per optimizer step, DDP on two gloo processes",
        "µs",
        {
            "plain": TWO_RANKS + SETTING + DATA + PLAIN_DDP + CLOCK + FAREWELL,
            "ours": accumulated("accel"),
            "peer": accumulated("accelerate"),
        },
    ),
    "ready": Case(
        "import the package and build an Accelerator, after `import torch`",
        "ms",
        {
            "ours": READY.format(package="accel", arguments=""),
            "peer": READY.format(package="accelerate", arguments=""),
            "ours, cpu": READY.format(package="accel", arguments="cpu=True"),
            "peer, cpu": READY.format(package="accelerate", arguments="cpu=True"),
        },
    ),
}
