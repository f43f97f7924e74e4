"""Kubernetes' and Kubeflow's own models of what a manifest may hold; no cluster."""

from tools.engines.protocol import Engine
from tools.setup.presets import clusters

engine = Engine(
    name="kubernetes",
    purpose="manifests of launches, held against the models of JobSet and PyTorchJob",
    tests=("integration-tests/test_kubernetes.py",),
    environment=clusters,
)
