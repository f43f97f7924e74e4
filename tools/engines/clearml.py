"""ClearML in its offline mode."""

from tools.engines.protocol import Engine
from tools.setup.environment import Environment

engine = Engine(
    name="clearml",
    purpose="tasks logged with ClearML offline, read back from its session files",
    tests=("packages/accel-trackers/tests/test_clearml.py",),
    environment=Environment("engines"),
)
