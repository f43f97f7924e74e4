"""Installed packages and their versions, from their metadata; none is imported."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from accel_state.errors import ConfigError, NotAvailableError, StateError

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


class Package(NamedTuple):
    """Packages that one availability check needs.

    ``module`` is what would be imported. One of ``distributions`` must have installed it; the first is the one to
    recommend. ``minimum`` is the oldest version that is accepted.
    """

    module: str
    distributions: tuple[str, ...]
    minimum: str | None = None
    install: str | None = None

    @property
    def install_hint(self) -> str:
        """The command that makes the package available."""
        wanted = self.install or self.distributions[0]
        if self.install is None and self.minimum is not None:
            wanted = f"'{wanted}>={self.minimum}'"
        return f"Run `pip install {wanted}`."

    def unavailable_reason(self) -> str | None:
        """Return one sentence on why the package cannot be used, None if it can."""
        from importlib.util import find_spec

        # Metadata decides, not whether an import would succeed: a folder of the package's name in the working
        # directory (wandb and mlflow make one) is not the package.
        installed = {
            name: version for name in self.distributions if (version := _version_of(name)) is not None
        }
        if not installed:
            return f"`{self.distributions[0]}` is not installed. {self.install_hint}"
        distribution, version = next(iter(installed.items()))
        if find_spec(self.module.partition(".")[0]) is None:
            return f"`{distribution}` {version} is installed, but its module `{self.module}` cannot be found."
        if self.minimum is None:
            return None
        from packaging.version import Version

        if Version(version) < Version(self.minimum):
            return (
                f"`{distribution}` is too old: found {version}, need {self.minimum} or newer. "
                f"Run `pip install -U '{distribution}>={self.minimum}'`."
            )
        return None


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
        raise ConfigError(
            f"`requirement_version` is `{requirement_version}`, which is no version. Pass one such as `2.9`."
        ) from None
    if isinstance(library_or_version, str):
        library_or_version = Version(installed_version(library_or_version))
    return STR_OPERATION_TO_FUNC[operation](library_or_version, wanted)


def is_torch_version(operation: str, version: str) -> bool:
    """Compare the installed torch with ``version``; reads torch's metadata and does not import it."""
    return compare_versions("torch", operation, version)


def installed_version(distribution: str) -> str:
    """Return the version of an installed distribution.

    Raises:
        NotAvailableError: If it is not installed.
    """
    version = _version_of(distribution)
    if version is None:
        raise NotAvailableError(f"`{distribution}` is not installed. Run `pip install {distribution}`.")
    return version


def require_no_accelerate() -> None:
    """Check that Accelerate is not installed, since `accel.drop_in` provides the same module.

    Raises:
        StateError: If it is.
    """
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("accelerate")
    if spec is not None and spec.origin is not None:
        raise StateError(
            f"Accelerate is installed (`{spec.origin}`), and `accel.drop_in` would replace it. Uninstall "
            "it (`pip uninstall accelerate`), or leave the drop-in out (`accel drop-in remove`, no `--drop_in`)."
        )


def _version_of(distribution: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
