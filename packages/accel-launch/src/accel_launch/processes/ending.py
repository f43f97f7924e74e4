"""How a process ended, as numbers for the shell and as words for people."""

from __future__ import annotations

import signal


def exit_code_for_shell(return_code: int) -> int:
    """Turn a return code of `subprocess` into the exit code of a shell: signal ``n`` becomes ``128 + n``."""
    return return_code if return_code >= 0 else 128 - return_code


def signal_name(number: int) -> str:
    """Return ``SIGSEGV`` for 11; ``signal 40`` where the signal has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_ending(return_code: int, *, num_memory_kills: int = 0) -> str:
    """Say how a process ended: ``ended with exit code 3``, ``was killed by SIGSEGV``.

    Where the kernel has killed processes for want of memory during the run, a SIGKILL is taken to be that.
    """
    if return_code >= 0:
        return f"ended with exit code {return_code}"
    if return_code == -signal.SIGKILL and num_memory_kills:
        return "was killed by the out-of-memory killer"
    return f"was killed by {signal_name(-return_code)}"
