"""An epoch of the digits example, model and data prepared, on one process."""

from tools.bench.case import Case

BODY = """
import sys, time
sys.path.insert(0, "docs/examples")
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader
from digits import digits, network
torch.set_num_threads(1)
torch.manual_seed(0)
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(digits()[0], batch_size=32, shuffle=True, drop_last=True)
{prepare}
durations = []
for _ in range(6):
    begun = time.perf_counter()
    for images, labels in loader:
        loss = F.cross_entropy(model(images), labels)
        {backward}
        optimizer.step()
        optimizer.zero_grad()
    durations.append((time.perf_counter() - begun) * 1e3)
print(min(durations))
"""
THROUGH = """
from {package} import Accelerator
accelerator = Accelerator(cpu=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
"""


def through(package: str) -> str:
    """Return a variant that trains through ``package``."""
    return BODY.format(prepare=THROUGH.format(package=package), backward="accelerator.backward(loss)")


case = Case(
    title="an epoch of the digits example, 44 batches of 32",
    unit="ms",
    variants={
        "plain": BODY.format(prepare="", backward="loss.backward()"),
        "ours": through("accel"),
        "peer": through("accelerate"),
    },
    baseline="plain",
)
