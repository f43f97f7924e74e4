"""Ray, as a new cluster and as an existing one."""

from tools.engines.protocol import Engine
from tools.setup.environment import Environment

engine = Engine(
    name="ray",
    purpose="launches on real Ray clusters of one and two nodes",
    tests=("integration-tests/test_ray.py",),
    environment=Environment("clusters"),
)
