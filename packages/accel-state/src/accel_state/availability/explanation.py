"""One sentence on why something is not available."""

from __future__ import annotations

from accel_state.errors import UnknownNameError


def why_not(name: str) -> str | None:
    """Return why ``name`` is not available and what to do, None if it is available.

    Args:
        name: A package or device as in ``is_<name>_available``, such as ``deepspeed`` or ``cuda``; the whole
            name of the function is understood too. Only devices make torch be imported.

    Raises:
        UnknownNameError: If there is no such check.
    """
    from accel_state.availability import devices, packages

    checks = {**packages.WHY_NOT, **devices.WHY_NOT}
    short = name.removeprefix("is_").removesuffix("_available")
    if short not in checks:
        raise UnknownNameError.of("availability check", short, checks)
    return checks[short]()
