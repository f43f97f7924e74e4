"""One training step of a model so small that what surrounds it can be seen."""

from tools.bench.case import Case

SETTING = """
import time, torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
inputs, labels = torch.randn(8, 16), torch.randint(4, (8,))
"""

LOOP = """
def steps(count):
    for _ in range(count):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        backward(loss)
        optimizer.step()
steps(200)
begun = time.perf_counter()
steps(2000)
print((time.perf_counter() - begun) / 2000 * 1e6)
"""


def through(package: str) -> str:
    """Return the variant that trains with the ``Accelerator`` of ``package``."""
    prepared = f"""
from {package} import Accelerator
accelerator = Accelerator(cpu=True)
model, optimizer = accelerator.prepare(model, optimizer)
backward = accelerator.backward
"""
    return SETTING + prepared + LOOP


case = Case(
    title="one training step of a tiny model",
    unit="µs",
    variants={
        "plain": SETTING + "backward = torch.Tensor.backward\n" + LOOP,
        "ours": through("accel"),
        "peer": through("accelerate"),
    },
    baseline="plain",
)
