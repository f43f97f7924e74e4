"""What other machines get of this one's environment, where a program in between starts the ranks there."""

from __future__ import annotations

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
