"""Time of ``import accel`` by itself, before first use."""

from tools.bench.case import Case

case = Case(
    title="only import the package, complete process",
    unit="s",
    variants={
        "python": "pass",
        "ours": "import accel",
        "torch": "import torch",
        "peer": "import accelerate",
    },
    baseline="python",
)
