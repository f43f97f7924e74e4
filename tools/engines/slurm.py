"""SLURM: a controller and two nodes in a network namespace."""

from tools.engines.protocol import Engine

engine = Engine(
    name="slurm",
    purpose="srun and sbatch on a cluster of two nodes on this machine",
    tests=("integration-tests/test_slurm.py", "integration-tests/test_slurm_pages.py"),
    debian=("iproute2", "munge", "slurm-client", "slurmctld", "slurmd"),
    needs_root=True,
)
