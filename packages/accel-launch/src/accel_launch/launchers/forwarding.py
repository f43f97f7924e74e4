"""What other machines get of this one's environment, where a program in between starts the ranks there."""

from __future__ import annotations

from collections.abc import Mapping

# Beside the settings of the run. Anything not named here stays here: it may be a secret.
FORWARDED = (
    "DS_ACCELERATOR",
    "GLOO_SOCKET_IFNAME",
    "HF_HOME",
    "LD_LIBRARY_PATH",
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_IB_HCA",
    "NCCL_P2P_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "PATH",
    "PYTHONPATH",
)

_OF_THIS_MACHINE = frozenset({"LD_LIBRARY_PATH", "PATH", "PYTHONPATH"})


def forwarded_to_images(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what containers and clusters with a file system of their own get: everything but paths of this one."""
    return {name: environ[name] for name in FORWARDED if name in environ and name not in _OF_THIS_MACHINE}
