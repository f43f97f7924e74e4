"""Pyright, which Pylance runs in editors."""

from tools.engines.protocol import Engine
from tools.setup.environment import Environment

engine = Engine(
    name="pyright",
    purpose="what pyright and editors see of the public names",
    tests=("integration-tests/test_types.py",),
    environment=Environment("engines"),
)
