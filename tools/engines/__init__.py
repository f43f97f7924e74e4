"""Engines and services that tests run for real: one file each, with its requirements and the paths of its tests."""

from __future__ import annotations

from importlib import import_module

from tools.engines.protocol import Engine

NAMES = (
    "aim", "alone", "clearml", "deepspeed", "disks", "kubernetes", "libraries", "megatron", "mpich", "openmpi",
    "pyright", "ray", "sagemaker", "site", "slurm", "ssh", "xla",
)  # fmt: skip
ONLY_IF_NAMED = ("disks",)
"""Their set-up takes longer than the tests of all others."""


def load_engine(name: str) -> Engine:
    """Return the engine whose file is ``tools/engines/<name>.py``."""
    engine: Engine = import_module(f"tools.engines.{name}").engine
    return engine
