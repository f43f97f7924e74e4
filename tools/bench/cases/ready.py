"""How long until an ``Accelerator`` stands, from the start of the process."""

from tools.bench.case import Case

case = Case(
    title="start Python and build an Accelerator on the CPU, whole process",
    unit="s",
    variants={
        "torch": "import torch",
        "ours": "from accel import Accelerator; Accelerator(cpu=True)",
        "peer": "from accelerate import Accelerator; Accelerator(cpu=True)",
    },
    baseline="torch",
)
