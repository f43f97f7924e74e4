"""Amazon's SageMaker SDK against moto, a server on this machine that answers as Amazon does."""

from tools.engines.protocol import Engine
from tools.setup.environment import Environment

engine = Engine(
    name="sagemaker",
    purpose="jobs submitted with Amazon's SDK to moto's server on loopback",
    tests=("packages/accel-launch/tests/sagemaker",),
    environment=Environment("engines"),
)
