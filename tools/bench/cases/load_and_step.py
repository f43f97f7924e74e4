"""How long a process that has just started takes to load a checkpoint and finish its first step.

What a load leaves in the file, to be copied when it is first written to, the first step of the optimizer pays for.
"""

from tools.bench.case import Case
from tools.bench.cases.load_fresh import resumed

STEP = """
optimizer.step()
"""

case = Case(
    title="load a checkpoint of 1.2 GB in a process that has just started, and take the first step of Adam",
    unit="s",
    variants={
        "plain mmap": resumed(None, STEP),
        "ours": resumed("accel", STEP),
        "peer": resumed("accelerate", STEP),
    },
    baseline="plain mmap",
)
