"""What ``import accel`` alone costs, before anything of it is used."""

from tools.bench.case import Case

case = Case(
    title="import the package and nothing else, whole process",
    unit="s",
    variants={
        "python": "pass",
        "ours": "import accel",
        "torch": "import torch",
        "peer": "import accelerate",
    },
    baseline="python",
)
