"""Open MPI."""

from tools.engines.protocol import Engine

engine = Engine(
    name="openmpi",
    purpose="launches through Open MPI's mpirun",
    tests=("integration-tests/test_mpi.py",),
    debian=("openmpi-bin",),
    # Its mpirun runs as root only with both variables.
    variables={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
)
