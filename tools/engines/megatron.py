"""megatron-core, whose groups, models, schedules and checkpoints run on gloo."""

from __future__ import annotations

from tools.engines.protocol import Engine
from tools.setup.environment import Environment
from tools.workspace import ROOT, dependency_group, read_packages

REQUIREMENTS = ("megatron-core>=0.16,<0.17", "transformers>=5")


def megatron_environment() -> Environment:
    """Return all packages in addition to megatron-core."""
    return Environment(
        ROOT / ".venvs" / "megatron",
        list(read_packages().values()),
        [*dependency_group("test"), *REQUIREMENTS],
    )


engine = Engine(
    name="megatron",
    purpose="megatron-core on two and four processes, without GPUs",
    tests=("integration-tests/test_megatron.py",),
    environment=megatron_environment,
    variables={"OMP_NUM_THREADS": "1"},
)
