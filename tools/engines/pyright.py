"""Pyright, which Pylance runs in editors."""

from tools.engines.protocol import Engine
from tools.setup.presets import heavy_engines

engine = Engine(
    name="pyright",
    purpose="what pyright and editors see of the public names",
    tests=("integration-tests/test_types.py",),
    environment=heavy_engines,
)
