"""Libraries that import `accelerate`, in an environment without it: there it means accel."""

import subprocess

from tools.engines.protocol import Engine
from tools.setup.apart import install_clients, install_peer
from tools.setup.environment import Environment
from tools.setup.running import environment_with


def remove_accelerate(environment: Environment) -> None:
    """Uninstall Accelerate, which some of them require."""
    words = [str(environment.python), "-m", "pip", "uninstall", "--quiet", "--yes", "accelerate"]
    subprocess.run(words, env=environment_with(), check=True)  # does nothing if it is not installed


def prepare(environment: Environment) -> None:
    """Leave Accelerate out of the environment, and put it into a folder that processes of comparison import from."""
    remove_accelerate(environment)
    install_peer(environment)
    install_clients(environment)


engine = Engine(
    name="libraries",
    purpose="transformers, PEFT, TRL, diffusers and others on accel, with `accelerate` meaning accel",
    tests=(
        "integration-tests/test_clients.py",
        "integration-tests/test_libraries.py",
        "integration-tests/test_peer_scripts.py",
        "integration-tests/test_peer_suite.py",
        "integration-tests/test_trainer_options.py",
        "integration-tests/test_trainer_parallel.py",
    ),
    environment=Environment("libraries"),
    prepare=prepare,
    num_workers=2,
)
