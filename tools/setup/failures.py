"""Errors of setting up an environment, in one line each."""

from __future__ import annotations

from pathlib import Path

DISK_FULL = ("No space left on device", "[Errno 28]", "Disk quota exceeded", "not enough space on the disk")
INDEX_UNREACHABLE = (
    "Failed to establish a new connection",
    "Temporary failure in name resolution",
    "Name or service not known",
    "getaddrinfo failed",
    "Network is unreachable",
    "Connection refused",
    "NewConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ProxyError",
    "Max retries exceeded",
    "SSLError",
)


class SetupError(Exception):
    """The set-up cannot continue. The text is one line with the next step."""


def explain_pip_failure(output: str, log: Path) -> str:
    """Turn what pip printed into one line that names the cause and the full log."""
    if any(sign in output for sign in DISK_FULL):
        return f"The disk is full: pip could not write its packages. Free some and try again. Log: {log}"
    if any(sign in output for sign in INDEX_UNREACHABLE):
        return (
            "The package index is unreachable. Check the network, or point pip at a mirror"
            f" (PIP_INDEX_URL, PIP_FIND_LINKS), and run this again. Log: {log}"
        )
    errors = [line.strip() for line in output.splitlines() if line.lstrip().lower().startswith("error:")]
    reason = errors[-1] if errors else "pip gave no reason"
    return f"pip could not install the packages ({reason}). Log: {log}"


def require_free_space(folder: Path, *, free_bytes: int, needed_bytes: int) -> None:
    """Raise ``SetupError`` before the work starts if ``folder``'s disk has too little space."""
    if free_bytes < needed_bytes:
        raise SetupError(
            f"The disk is full: {folder} has {free_bytes / 1e9:.1f} GB free,"
            f" an environment with torch needs about {needed_bytes / 1e9:.1f} GB. Free some and try again."
        )
