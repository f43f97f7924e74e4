"""How long until an ``Accelerator`` is constructed, beyond the import of torch."""

from tools.bench.case import Case

CLOCK = """
import time
import torch
begun = time.perf_counter()
{build}
print((time.perf_counter() - begun) * 1e3)
"""


def through(package: str, arguments: str) -> str:
    """Return the variant that builds the ``Accelerator`` of ``package``."""
    return CLOCK.format(build=f"from {package} import Accelerator\nAccelerator({arguments})")


case = Case(
    title="import the package and build an Accelerator, after `import torch`",
    unit="ms",
    variants={
        "ours": through("accel", ""),
        "peer": through("accelerate", ""),
        "ours, cpu": through("accel", "cpu=True"),
        "peer, cpu": through("accelerate", "cpu=True"),
    },
    baseline="ours",
)
