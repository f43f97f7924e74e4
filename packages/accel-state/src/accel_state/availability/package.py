"""Why a package is not available: found out from metadata, without importing it."""

from __future__ import annotations

from typing import NamedTuple


class Package(NamedTuple):
    """What must be installed for one availability check.

    ``module`` is what would be imported; any one of ``distributions`` must have brought it, the first being
    the one to recommend; ``minimum`` is the oldest version that will do.
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


def why_package_not(package: Package, *, minimum: str | None = None) -> str | None:
    """Return one sentence that says why ``package`` cannot be used, None if it can.

    Args:
        package: What to look for.
        minimum: The oldest version that will do, instead of the package's own.
    """
    from importlib.util import find_spec

    if minimum is not None:
        package = package._replace(minimum=minimum)
    found = _installed(package.distributions)
    if found is None:
        return f"`{package.distributions[0]}` is not installed. {package.install_hint}"
    distribution, version = found
    if find_spec(package.module) is None:
        return f"`{distribution}` {version} is installed, but its module `{package.module}` cannot be found."
    if package.minimum is None:
        return None
    from packaging.version import Version

    if Version(version) < Version(package.minimum):
        return (
            f"`{distribution}` is too old: found {version}, need {package.minimum} or newer. "
            f"Run `pip install -U '{distribution}>={package.minimum}'`."
        )
    return None


def _installed(distributions: tuple[str, ...]) -> tuple[str, str] | None:
    # A folder of the package's name in the working directory (wandb and mlflow make one) is not the package,
    # so what counts is metadata, not whether an import would find something.
    from importlib import metadata

    for name in distributions:
        try:
            return name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
