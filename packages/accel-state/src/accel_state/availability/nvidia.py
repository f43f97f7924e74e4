"""What the NVIDIA driver says of its GPUs, through ``nvidia-smi``, so that CUDA stays uninitialised."""

from __future__ import annotations

import shutil
import subprocess

from accel_state.errors import NotAvailableError

_TIMEOUT_S = 30
# From this driver on, the GPUs below announce themselves that they lack direct exchange.
_FIXED_DRIVER = "550.40.07"
# Consumer GPUs of this generation were sold without peer-to-peer and InfiniBand support.
LACKING_P2P = "RTX 40"


def get_gpu_info() -> tuple[list[str], int]:
    """Return the names of this machine's NVIDIA GPUs and their number.

    Raises:
        NotAvailableError: If the driver is not there or does not answer.
    """
    names = _query("name")
    return names, len(names)


def get_driver_version() -> str:
    """Return the version of the NVIDIA driver, such as ``550.54.15``.

    Raises:
        NotAvailableError: If the driver is not there, does not answer, or knows no GPU.
    """
    versions = _query("driver_version")
    if not versions:
        raise NotAvailableError(
            "`nvidia-smi` lists no GPU, so the version of the driver is not known. Check the NVIDIA driver."
        )
    return versions[0]


def check_cuda_p2p_ib_support() -> bool:
    """Whether the GPUs can exchange data directly (peer-to-peer, InfiniBand).

    False for several consumer GPUs of the 40 series under an older driver, which would hang; NCCL then has to
    be told with ``NCCL_P2P_DISABLE=1`` and ``NCCL_IB_DISABLE=1``. True where there is nothing to restrict,
    machines without an NVIDIA driver included.
    """
    from packaging.version import Version

    if shutil.which("nvidia-smi") is None:
        return True
    names, num_gpus = get_gpu_info()
    if num_gpus < 2 or not any(LACKING_P2P in name for name in names):
        return True
    return Version(get_driver_version()) >= Version(_FIXED_DRIVER)


def _query(field: str) -> list[str]:
    """Return one line per GPU for a field of ``nvidia-smi --help-query-gpu``."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise NotAvailableError("`nvidia-smi` is not on the PATH. Install the NVIDIA driver.")
    try:
        answer = subprocess.run(
            [program, f"--query-gpu={field}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
        raise NotAvailableError(f"`nvidia-smi` does not answer: {error}. Check the NVIDIA driver.") from error
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]
