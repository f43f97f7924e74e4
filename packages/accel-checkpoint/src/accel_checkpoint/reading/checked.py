"""Files of a checkpoint, compared with the manifest before they are read."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from accel_checkpoint.digests import digest_of
from accel_checkpoint.file_names import MANIFEST_NAME
from accel_checkpoint.files import regular_file
from accel_checkpoint.manifest import FileEntry, has_manifest, read_manifest
from accel_state.errors import CheckpointError


class DamagedFileError(CheckpointError):
    """A file of a checkpoint is not what was saved; an error also for loads that are not strict."""


def checked_file(folder: Path, name: str) -> Path:
    """Return the path of a file of a checkpoint whose digest is that in the manifest.

    Reads the whole file. Without a manifest, or if that does not list the file, there is nothing to compare.

    Raises:
        DamagedFileError: If the digest differs.
        CheckpointError: As `regular_file`; or if the manifest is damaged.
    """
    path = regular_file(folder, name)
    entry = _entries(folder).get(name) if has_manifest(folder) else None
    if entry is not None and digest_of(path, like=entry.digest) != entry.digest:
        raise DamagedFileError(
            f"`{path}` is not what was saved: its digest differs. Load another checkpoint, or copy this one again."
        )
    return path


def _entries(folder: Path) -> dict[str, FileEntry]:
    status = (folder / MANIFEST_NAME).stat()
    return _entries_of(folder, (status.st_ino, status.st_mtime_ns, status.st_size))


@lru_cache(maxsize=4)
def _entries_of(folder: Path, version: tuple[int, ...]) -> dict[str, FileEntry]:
    """Return the entries of the manifest, which is parsed once for all files; ``version`` changes when it does."""
    return {entry.name: entry for entry in read_manifest(folder).files_here}
