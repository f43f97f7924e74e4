"""megatron-core, whose groups, models, schedules and checkpoints run on gloo."""

from tools.engines.protocol import Engine
from tools.setup.environment import Environment

engine = Engine(
    name="megatron",
    purpose="megatron-core on two and four processes, without GPUs",
    tests=("integration-tests/test_megatron.py",),
    environment=Environment("megatron"),
    variables={"OMP_NUM_THREADS": "1"},
)
