"""Aim, read back with its SDK."""

from tools.engines.protocol import Engine
from tools.setup.environment import Environment

engine = Engine(
    name="aim",
    purpose="runs logged with Aim, read back with its SDK",
    tests=("packages/accel-trackers/tests/test_aim.py",),
    environment=Environment("engines"),
)
