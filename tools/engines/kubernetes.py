"""Kubernetes' and Kubeflow's models of manifests; no cluster."""

from tools.engines.protocol import Engine
from tools.setup.environment import Environment

engine = Engine(
    name="kubernetes",
    purpose="manifests of launches, validated by the models of JobSet and PyTorchJob",
    tests=("integration-tests/test_kubernetes.py",),
    environment=Environment("clusters"),
)
