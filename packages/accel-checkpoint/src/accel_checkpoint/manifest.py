"""The list of everything in a checkpoint; written last, so that a folder that has it is complete."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from accel_checkpoint.digests import digest_of
from accel_checkpoint.file_names import MANIFEST_NAME
from accel_checkpoint.files import force_to_disk, is_plain_name, regular_file
from accel_state.errors import CheckpointError, ConfigError
from accel_state.mesh_layout import MeshLayout

FORMAT = "accel-checkpoint"
VERSION = 1
MAX_BYTES = 64 * 2**20
"""A longer manifest than this is not read: it cannot be ours."""


def versions() -> dict[str, str]:
    """Return the versions that matter for reading a checkpoint later."""
    found = {"python": platform.python_version()}
    for name in ("accel", "torch"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a checkpoint.

    Attributes:
        name: Relative to the folder, with `/` between parts.
        num_bytes: Its size.
        digest: Of its content; see `digests`.
        rank: Which rank wrote it.
        place: Which file system holds it: 0 is the main process's, others are numbered like their nodes.
    """

    name: str
    num_bytes: int
    digest: str
    rank: int = 0
    place: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is in a checkpoint.

    Attributes:
        files: Of all ranks; those of another `place` are on another node.
        world_size: Ranks that saved it.
        mesh: How these were arranged: the size of each axis of `MeshLayout`; empty if each had the whole model.
        strategy: How the models were trained, such as `ddp`; empty where that does not matter.
        model_format: How the models lie in the files, such as `full`; likewise.
        step: Training steps so far: backward passes that completed the gradients.
        iteration: Number of the checkpoint, where it was named by number.
        place: Which file system this manifest describes.
        objects: Class names of what was saved, by kind.
        token: Tells the save from all others; the parts of one save on several machines have the same.
        created: When, in UTC.
        packages: Versions that wrote it.
    """

    files: Sequence[FileEntry]
    world_size: int = 1
    mesh: Mapping[str, int] = field(default_factory=dict)
    strategy: str = ""
    model_format: str = ""
    step: int = 0
    iteration: int | None = None
    place: int = 0
    objects: Mapping[str, Sequence[str]] = field(default_factory=dict)
    token: str = ""
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    packages: Mapping[str, str] = field(default_factory=versions)

    @property
    def layout(self) -> MeshLayout:
        """How the ranks that saved it were arranged."""
        return MeshLayout(**self.mesh) if self.mesh else MeshLayout.of_replicas(self.world_size)

    @property
    def files_here(self) -> list[FileEntry]:
        """The files that lie beside this manifest."""
        return [entry for entry in self.files if entry.place == self.place]

    @property
    def num_bytes(self) -> int:
        """Size of all files, on all nodes."""
        return sum(entry.num_bytes for entry in self.files)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest into ``folder`` and force both to disk."""
    content = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    path = folder / MANIFEST_NAME
    with path.open("x", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    force_to_disk(folder)


def has_manifest(folder: Path) -> bool:
    """Whether ``folder`` says that it is a complete checkpoint."""
    return os.path.lexists(folder / MANIFEST_NAME)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint.

    Raises:
        CheckpointError: If it is missing, damaged, of a later format, or names files outside of the folder.
    """
    path = regular_file(folder, MANIFEST_NAME)
    if path.stat().st_size > MAX_BYTES:
        raise CheckpointError(f"The manifest `{path}` is larger than {MAX_BYTES} bytes and is not read.")
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"The manifest `{path}` is damaged: {error}") from error
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise CheckpointError(f"`{path}` is not the manifest of a checkpoint.")
    written_in = content.pop("version", None)
    if written_in != VERSION:
        raise CheckpointError(
            f"The checkpoint `{folder}` has format version {written_in!r}; this release reads {VERSION}. "
            "Load it with the release that wrote it."
        )
    try:
        files = [FileEntry(**_known(FileEntry, entry)) for entry in content["files"]]
        manifest = Manifest(**{**_known(Manifest, content), "files": files})
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"The manifest `{path}` is damaged: {error}") from error
    _check(manifest, path)
    return manifest


def _known(kind: type[Manifest | FileEntry], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that this release knows; a later one that adds a field which must be known raises `VERSION`."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in content.items() if name in names}


def problems_of(folder: Path, manifest: Manifest, *, digests: bool) -> list[str]:
    """Return, one line each, how the files in ``folder`` differ from the manifest; empty where they do not.

    Args:
        folder: The checkpoint.
        manifest: Its manifest.
        digests: Read every file and compare digests too, not just sizes.
    """
    found = []
    for entry in manifest.files_here:
        try:
            path = regular_file(folder, entry.name)
        except CheckpointError as error:
            found.append(str(error))
            continue
        size = path.stat().st_size
        if size != entry.num_bytes:
            found.append(f"`{entry.name}` has {size} bytes instead of {entry.num_bytes}.")
        elif digests and digest_of(path) != entry.digest:
            found.append(f"`{entry.name}` is not what was saved: its digest differs.")
    return found


def _check(manifest: Manifest, path: Path) -> None:
    numbers = (manifest.world_size, manifest.step, manifest.place)
    if (
        not all(isinstance(value, int) for value in numbers)
        or not isinstance(manifest.objects, dict)
        or not isinstance(manifest.token, str)
    ):
        raise CheckpointError(f"The manifest `{path}` is damaged: a field has the wrong type.")
    try:
        num_ranks = manifest.layout.world_size
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"The manifest `{path}` is damaged: {error}") from error
    if num_ranks != manifest.world_size:
        raise CheckpointError(
            f"The manifest `{path}` is damaged: its mesh is for {num_ranks} ranks, but {manifest.world_size} saved it."
        )
    for entry in manifest.files:
        if not is_plain_name(entry.name) or not isinstance(entry.num_bytes, int):
            raise CheckpointError(
                f"The manifest `{path}` names the file `{entry.name}`. Only files inside the folder are read."
            )
