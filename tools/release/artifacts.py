"""Are a wheel and a source distribution as they should be published?"""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tools.setup.failures import SetupError
from tools.workspace import Package

NEVER = ("tests", "__pycache__", ".hypothesis", ".pytest_cache", ".git")
"""Folders that belong into no wheel."""


@dataclass(frozen=True)
class Artifacts:
    """The two files that a release of a package publishes."""

    wheel: Path
    sdist: Path

    @property
    def files(self) -> tuple[Path, Path]:
        return self.wheel, self.sdist


def artifacts_of(package: Package, folder: Path) -> Artifacts:
    """Return the files of the version of ``package`` that are in ``folder``.

    Raises:
        SetupError: If one is missing.
    """
    stem = f"{package.import_name}-{package.version}"
    found = Artifacts(folder / f"{stem}-py3-none-any.whl", folder / f"{stem}.tar.gz")
    for file in found.files:
        if not file.is_file():
            raise SetupError(f"`{file}` is missing. `python -m tools.release.build --sdist {package.name}`")
    return found


def sha256_of(file: Path) -> str:
    """Return the digest of ``file`` in hexadecimal."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def require_same_bytes(first: Artifacts, second: Artifacts) -> None:
    """Raise ``SetupError`` unless two builds of a package gave the same files."""
    for one, other in zip(first.files, second.files, strict=True):
        if sha256_of(one) != sha256_of(other):
            raise SetupError(
                f"`{one.name}` differs between two builds of one commit. Look for what depends on the time or on"
                " the order of files in its build hook."
            )


def contents(wheel: Path) -> dict[str, str]:
    """Return the digest of each file in ``wheel`` by its name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def require_same_contents(wheel: Path, other: Path) -> None:
    """Raise ``SetupError`` unless the wheel built from the sdist has the files of the one built from the checkout."""
    one, two = contents(wheel), contents(other)
    differing = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
    files = [name for name in differing if not name.endswith("/RECORD")]
    if files:
        raise SetupError(
            f"`{wheel.name}` built from the source distribution differs in {', '.join(files[:5])} ({len(files)} files)."
            " Include the missing files in the sdist, in `tool.hatch.build` of the package's pyproject.toml."
        )


def require_complete_wheel(package: Package, wheel: Path, *, also: Sequence[str] = ()) -> None:
    """Raise ``SetupError`` unless ``wheel`` has a license, ``py.typed`` and ``also``, and no useless files."""
    names = contents(wheel)
    info = f"{package.import_name}-{package.version}.dist-info"
    for needed in (f"{info}/licenses/LICENSE", f"{package.import_name}/py.typed", *also):
        if needed not in names:
            raise SetupError(f"`{wheel.name}` lacks {needed}.")
    for name in names:
        parts = PurePosixPath(name).parts
        if parts[0] not in (package.import_name, info):
            raise SetupError(f"`{wheel.name}` installs `{name}` outside of `{package.import_name}`.")
        if set(parts) & set(NEVER) or name.endswith(".pyc"):
            raise SetupError(f"`{wheel.name}` has `{name}`, which belongs into no wheel.")


def extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpack an archive of ours, with Python's check of its members where it has one (since 3.11.4)."""
    options: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    archive.extractall(folder, **options)  # noqa: S202 (of an archive that we made)


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack ``sdist`` into ``folder`` and return the folder of the project."""
    with tarfile.open(sdist) as archive:
        extract(archive, folder)
    return folder / sdist.name.removesuffix(".tar.gz")
