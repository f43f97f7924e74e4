"""Libraries that import `accelerate`, in an environment without it: there it means accel."""

import subprocess

from tools.engines.protocol import Engine
from tools.setup.environment import Environment
from tools.setup.presets import libraries
from tools.setup.running import environment_with


def remove_accelerate(environment: Environment) -> None:
    """Uninstall Accelerate itself, which some of them bring."""
    words = [str(environment.python), "-m", "pip", "uninstall", "--quiet", "--yes", "accelerate"]
    subprocess.run(words, env=environment_with(), check=True)  # nothing happens where it is not there


engine = Engine(
    name="libraries",
    purpose="transformers, PEFT, TRL, diffusers and others on accel, with `accelerate` meaning accel",
    tests=(
        "integration-tests/test_libraries.py",
        "integration-tests/test_peer_suite.py",
        "integration-tests/test_peer_scripts.py",
    ),
    environment=libraries,
    prepare=remove_accelerate,
)
