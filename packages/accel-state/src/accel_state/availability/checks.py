"""Why something is not available, and calls that are refused without it; what this system is like."""

from __future__ import annotations

import functools
import logging
import platform
import re
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from accel_state.errors import NotAvailableError, UnknownNameError

P = ParamSpec("P")
R = TypeVar("R")
logger = logging.getLogger(__name__)
_OLDEST_LINUX = (5, 5, 0)


def why_not(name: str) -> str | None:
    """Return why ``name`` is not available and what to do, None if it is available.

    Args:
        name: A package or device as in ``is_<name>_available``, such as ``deepspeed`` or ``cuda``; the whole
            name of the function is understood too. Only devices make torch be imported.

    Raises:
        UnknownNameError: If there is no such check.
    """
    from accel_state.availability import devices, packages
    from accel_state.devices.vendors import known_vendors

    checks: dict[str, Callable[[], str | None]] = {
        **packages.WHY_NOT,
        **{vendor.name: functools.partial(devices.why_no_device, vendor.name) for vendor in known_vendors()},
        "torch_distributed": devices.why_not_torch_distributed,
        "torch_xla": devices.why_not_torch_xla,
    }
    short = name.removeprefix("is_").removesuffix("_available")
    if short not in checks:
        raise UnknownNameError.of("availability check", short, checks)
    return checks[short]()


def deepspeed_required(func: Callable[P, R]) -> Callable[P, R]:
    """Make calls of ``func`` a `NotAvailableError` where DeepSpeed is not installed."""
    return _required("deepspeed", func)


def torchao_required(func: Callable[P, R]) -> Callable[P, R]:
    """Make calls of ``func`` a `NotAvailableError` where torchao is not installed or too old."""
    return _required("torchao", func)


def _required(name: str, func: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(func)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        reason = why_not(name)
        if reason is not None:
            raise NotAvailableError(f"`{func.__qualname__}` needs `{name}`. {reason}")
        return func(*args, **kwargs)

    return checked


def are_libraries_initialized(*library_names: str) -> list[str]:
    """Return those of the named top-level modules that have been imported in this process."""
    return [name for name in library_names if name in sys.modules]


def check_os_kernel() -> None:
    """Log a warning if the Linux kernel is older than 5.5.0, under which processes have been seen to hang."""
    uname = platform.uname()
    if uname.system != "Linux":
        return
    release = uname.release
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", release)
    if match is None:
        return
    if tuple(int(part or 0) for part in match.groups()) < _OLDEST_LINUX:
        oldest = ".".join(map(str, _OLDEST_LINUX))
        message = (
            f"The Linux kernel {release} is older than {oldest}, under which processes have been seen to "
            f"hang. Use kernel {oldest} or newer."
        )
        logger.warning(message)
