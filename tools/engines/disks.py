"""DeepSpeed with states and parameters on disks (NVMe), through the operator that reads and writes them."""

from __future__ import annotations

from dataclasses import replace

from tools.engines import deepspeed
from tools.setup.environment import Environment


def prepare(environment: Environment) -> None:
    """Compile the operators: nine files with all of torch's headers, ten minutes of one core."""
    deepspeed.compile_operators(environment, (*deepspeed.OPERATORS, "AsyncIOBuilder"))


engine = replace(
    deepspeed.engine,
    name="disks",
    purpose="DeepSpeed with states and parameters on disks (NVMe); runs only if it is named",
    tests=("integration-tests/test_deepspeed_disks.py",),
    debian=("g++", "libaio-dev"),
    needs_root=False,
    prepare=prepare,
    num_workers=1,
)
