"""Engines and services that tests run for real: what each needs; its tests are marked ``engine("NAME")``."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tools.engines import preparing
from tools.engines.deepspeed import VARIABLES, compile_disk_operators, prepare_deepspeed
from tools.environments import Environment
from tools.workspace import ROOT


@dataclass(frozen=True)
class Engine:
    """An engine or a service.

    Args:
        purpose: The subject of its tests, in a few words for ``--help``.
        environment: The environment of its tests in ``pyproject.toml``: the ordinary one, or one that has its packages.
        debian: The Debian packages that it needs.
        needs_root: Whether its tests need root: they start daemons or make network namespaces.
        variables: What its tests find in the process environment.
        prepare: Makes what no package brings, and returns at once if it is there.
        num_workers: Processes that its tests are distributed over; more than one if they share no service.
        distribution: How pytest-xdist does that; ``loadfile`` if the tests of a file share a job.
    """

    purpose: str
    environment: Environment = field(default_factory=Environment)
    debian: tuple[str, ...] = ()
    needs_root: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[Environment], None] = lambda environment: None
    num_workers: int = 1
    distribution: str = "load"


ENGINES: Mapping[str, Engine] = {
    "aim": Engine("runs logged with Aim, read back with its SDK", Environment("engines")),
    "alone": Engine(
        "each package by itself: a wheel, its declared dependencies, and plain PyTorch",
        prepare=preparing.install_each_alone,
        num_workers=2,
    ),
    "clearml": Engine(
        "tasks logged with ClearML offline, read back from its session files", Environment("engines")
    ),
    "deepspeed": Engine(
        "training with it on one machine, and its runner over two: pdsh, Open MPI, MPICH",
        Environment("engines"),
        debian=("g++", "iproute2", "mpich", "openmpi-bin", "openssh-client", "openssh-server", "pdsh"),
        needs_root=True,
        variables=VARIABLES,
        prepare=prepare_deepspeed,
        num_workers=2,
        distribution="loadfile",
    ),
    "disks": Engine(
        "DeepSpeed with states and parameters on disks (NVMe); runs only if it is named",
        Environment("engines"),
        debian=("g++", "libaio-dev"),
        variables=VARIABLES,
        prepare=compile_disk_operators,
    ),
    "kubernetes": Engine(
        "manifests of launches, validated by the models of JobSet and PyTorchJob", Environment("clusters")
    ),
    "libraries": Engine(
        "transformers, PEFT, TRL, diffusers and others on accel, with `accelerate` meaning accel",
        Environment("libraries"),
        prepare=preparing.leave_accelerate_out,
        num_workers=2,
    ),
    "long": Engine(
        "whole trainings: the examples, models of transformers, random settings, faults; needs no other package",
        num_workers=2,
        distribution="loadfile",
    ),
    "megatron": Engine(
        "megatron-core on two and four processes, without GPUs",
        Environment("megatron"),
        variables={"OMP_NUM_THREADS": "1"},
    ),
    "mpich": Engine("launches through MPICH's mpirun", debian=("mpich",)),
    "openmpi": Engine(
        "launches through Open MPI's mpirun",
        debian=("openmpi-bin",),
        # Its mpirun runs as root only with both variables.
        variables={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    ),
    "pyright": Engine("what pyright and editors see of the public names", Environment("engines")),
    "ray": Engine("launches on real Ray clusters of one and two nodes", Environment("clusters")),
    "restarts": Engine(
        "two hundred kills of the ranks of a training, in ten minutes; runs only if it is named"
    ),
    "sagemaker": Engine(
        "jobs submitted with Amazon's SDK to moto's server on loopback", Environment("engines")
    ),
    "site": Engine(
        "the documentation site in Chromium: search without a server, accessibility, phones, dark and light",
        Environment("browser"),
        debian=("chromium",),
        prepare=preparing.build_site,
    ),
    "slurm": Engine(
        "srun and sbatch on a cluster of two nodes on this machine",
        debian=("iproute2", "munge", "slurm-client", "slurmctld", "slurmd"),
        needs_root=True,
    ),
    "ssh": Engine(
        "launches over two machines: sshd in two network namespaces",
        debian=("iproute2", "openssh-client", "openssh-server"),
        needs_root=True,
    ),
    "trackers": Engine(
        "runs logged with MLflow, Weights & Biases, Comet, dvclive, SwanLab, Trackio, read back",
        num_workers=2,
        distribution="loadfile",
    ),
    "xla": Engine(
        "torch_xla on the CPU: one device, and two of one process",
        Environment("xla"),
        debian=("binutils", "gcc"),
        variables={"LD_LIBRARY_PATH": str(preparing.STUBS), "PJRT_DEVICE": "CPU"},
        prepare=preparing.stub_cuda,
        num_workers=2,
    ),
}
ONLY_IF_NAMED = ("disks", "restarts")
"""They take as long as the tests of all others."""


def marked_files(name: str) -> list[str]:
    """Return the files with tests that are marked with an engine; its name may be a regular expression."""
    pattern = rf'mark\.engine\("{name}"\)'
    files = ["*/test_*.py", ":!tools/tests/test_selection.py"]
    command = ["git", "grep", "-lE", "--untracked", pattern, "--", *files]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
