"""MPICH."""

from tools.engines.protocol import Engine

engine = Engine(
    name="mpich",
    purpose="launches through MPICH's mpirun",
    tests=("integration-tests/test_mpi.py",),
    debian=("mpich",),
)
