"""Names and driver of NVIDIA GPUs, through ``nvidia-smi``, so that CUDA stays uninitialized."""

from __future__ import annotations

import shutil
import subprocess

from accel_state.errors import NotAvailableError

_TIMEOUT_S = 30
# Since this driver version the GPUs below report that they lack peer-to-peer access.
_FIXED_DRIVER = "550.40.07"
# Consumer GPUs of this generation were sold without peer-to-peer and InfiniBand support.
LACKING_P2P = "RTX 40"


def get_gpu_info() -> tuple[list[str], int]:
    """Return the names of this machine's NVIDIA GPUs and their number.

    Raises:
        NotAvailableError: If there is no driver, or it does not answer.
    """
    names = query_gpus("name")
    return names, len(names)


def get_driver_version() -> str:
    """Return the version of the NVIDIA driver, such as ``550.54.15``.

    Raises:
        NotAvailableError: If there is no driver, it does not answer, or it lists no GPU.
    """
    versions = query_gpus("driver_version")
    if not versions:
        raise NotAvailableError(
            "`nvidia-smi` lists no GPU, so the driver's version is unknown. Check the NVIDIA driver."
        )
    return versions[0]


def check_cuda_p2p_ib_support() -> bool:
    """Whether the GPUs support peer-to-peer access and InfiniBand.

    False for several consumer GPUs of the 40 series under an older driver, which would hang: NCCL then needs
    ``NCCL_P2P_DISABLE=1`` and ``NCCL_IB_DISABLE=1``. True on all other machines, also without an NVIDIA driver.
    """
    from packaging.version import Version

    if shutil.which("nvidia-smi") is None:
        return True
    names, num_gpus = get_gpu_info()
    if num_gpus < 2 or not any(LACKING_P2P in name for name in names):
        return True
    return Version(get_driver_version()) >= Version(_FIXED_DRIVER)


def query_gpus(fields: str) -> list[str]:
    """Return one line per GPU for fields of ``nvidia-smi --help-query-gpu``, separated by commas.

    Raises:
        NotAvailableError: If there is no driver, or it does not answer.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        raise NotAvailableError("`nvidia-smi` is not on the PATH. Install the NVIDIA driver.")
    try:
        answer = subprocess.run(
            [program, f"--query-gpu={fields}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
        raise NotAvailableError(f"`nvidia-smi` does not answer: {error}. Check the NVIDIA driver.") from error
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]
