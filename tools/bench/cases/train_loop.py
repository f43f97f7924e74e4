"""One training step of a tiny model with everything prepared: model, optimizer, scheduler and loader."""

from tools.bench.case import Case
from tools.bench.loops import CLOCK, DATA, SETTING, STEP, prepared

case = Case(
    title="one training step of a tiny model, with scheduler and loader",
    unit="µs",
    variants={
        "plain": SETTING + DATA + "backward = torch.Tensor.backward\n" + STEP + CLOCK,
        "ours": SETTING + DATA + prepared("accel") + STEP + CLOCK,
        "peer": SETTING + DATA + prepared("accelerate") + STEP + CLOCK,
    },
    baseline="plain",
)
