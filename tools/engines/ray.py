"""Ray, as a cluster of its own and as one that exists."""

from tools.engines.protocol import Engine
from tools.setup.presets import clusters

engine = Engine(
    name="ray",
    purpose="launches on real Ray clusters of one and two nodes",
    tests=("integration-tests/test_ray.py",),
    environment=clusters,
)
