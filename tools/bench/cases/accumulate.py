"""One optimizer step over four micro-batches, per micro-batch: model, optimizer, scheduler and loader prepared."""

from tools.bench.case import Case
from tools.bench.loops import CLOCK, DATA, SETTING, prepared

PLAIN = """
def loop():
    for number, (inputs, labels) in enumerate(loader, start=1):
        (cross_entropy(model(inputs), labels) / 4).backward()
        if number % 4 == 0:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        yield
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


def through(package: str) -> str:
    """Return the variant that trains with the ``Accelerator`` of ``package``."""
    return SETTING + DATA + prepared(package, gradient_accumulation_steps=4) + ACCUMULATED + CLOCK


case = Case(
    title="one micro-batch of four per optimizer step, tiny model, prepared loader and scheduler",
    unit="µs",
    variants={
        "plain": SETTING + DATA + PLAIN + CLOCK,
        "ours": through("accel"),
        "peer": through("accelerate"),
    },
    baseline="plain",
)
