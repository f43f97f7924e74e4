"""From the start of Python to an ``Accelerator``, and out again."""

from tools.bench.case import Case

case = Case(
    title="start Python, build an Accelerator on the CPU, and exit: complete process",
    unit="s",
    variants={
        "torch": "import torch",
        "ours": "from accel import Accelerator; Accelerator(cpu=True)",
        "peer": "from accelerate import Accelerator; Accelerator(cpu=True)",
    },
    baseline="torch",
)
