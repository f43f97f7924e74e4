"""Aim, read back with its SDK."""

from tools.engines.protocol import Engine
from tools.setup.presets import heavy_engines

engine = Engine(
    name="aim",
    purpose="runs logged with Aim, read back with its SDK",
    tests=("packages/accel-trackers/tests/test_aim.py",),
    environment=heavy_engines,
)
