"""Comparing the versions of installed packages, from their metadata."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accel_state.errors import ConfigError, NotAvailableError

if TYPE_CHECKING:
    from packaging.version import Version

STR_OPERATION_TO_FUNC: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    "<": operator.lt,
}


def compare_versions(library_or_version: str | Version, operation: str, requirement_version: str) -> bool:
    """Compare a version, or the installed version of a package, with another.

    Args:
        library_or_version: Name of a distribution, or a parsed version.
        operation: One of ``>  >=  ==  !=  <=  <``.
        requirement_version: What to compare with.

    Raises:
        ConfigError: If ``operation`` is none of these, or ``requirement_version`` is no version.
        NotAvailableError: If the package is not installed.
    """
    from packaging.version import InvalidVersion, Version

    if operation not in STR_OPERATION_TO_FUNC:
        known = " ".join(STR_OPERATION_TO_FUNC)
        raise ConfigError(f"`operation` is `{operation}`, but it must be one of: {known}.")
    try:
        wanted = Version(requirement_version)
    except InvalidVersion:
        raise ConfigError(f"`requirement_version` is `{requirement_version}`, which is no version.") from None
    if isinstance(library_or_version, str):
        library_or_version = Version(installed_version(library_or_version))
    return STR_OPERATION_TO_FUNC[operation](library_or_version, wanted)


def is_torch_version(operation: str, version: str) -> bool:
    """Compare the installed torch with ``version``; reads torch's metadata and does not import it."""
    return compare_versions("torch", operation, version)


def installed_version(distribution: str) -> str:
    """Return the version of an installed distribution; one that is not there is a `NotAvailableError`."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        raise NotAvailableError(
            f"`{distribution}` is not installed. Run `pip install {distribution}`."
        ) from None
