"""Makes the scripts and drivers next to the tests importable; two machines and a SLURM cluster."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import slurm_cluster
import two_machines


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """Two machines with an sshd each, where this one lets us make them."""
    reason = two_machines.why_not()
    if reason is not None:
        pytest.skip(reason)
    with two_machines.two_machines(tmp_path_factory.mktemp("machines")) as made:
        yield made


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """A SLURM cluster of two nodes, where this machine has SLURM and lets us make one."""
    reason = slurm_cluster.why_not()
    if reason is not None:
        pytest.skip(reason)
    with slurm_cluster.cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made
