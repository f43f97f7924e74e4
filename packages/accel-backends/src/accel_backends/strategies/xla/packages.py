"""The modules of `torch_xla` that the strategy calls, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any


def package() -> Any:
    """Return `torch_xla` itself."""
    return importlib.import_module("torch_xla")


def model() -> Any:
    """Return `torch_xla.core.xla_model`: collectives."""
    return importlib.import_module("torch_xla.core.xla_model")


def runtime() -> Any:
    """Return `torch_xla.runtime`: devices and processes, and whether one program runs on several devices (SPMD)."""
    return importlib.import_module("torch_xla.runtime")


def spmd() -> Any:
    """Return `torch_xla.distributed.spmd`: meshes, and tensors that are spread over them."""
    return importlib.import_module("torch_xla.distributed.spmd")


def fsdp() -> Any:
    """Return `torch_xla.distributed.fsdp`, of which `checkpoint_module` is used."""
    return importlib.import_module("torch_xla.distributed.fsdp")
