"""The manifest lists every file of a checkpoint, with its digest. It is written last: a folder with one is complete."""

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

from accel_checkpoint.file_names import MANIFEST_NAME, RANDOM_STATES
from accel_checkpoint.files import (
    Digest,
    FileEntry,
    SavedFiles,
    force_to_disk,
    is_plain_name,
    opened,
    regular_file,
    shown,
)
from accel_state.errors import CheckpointError, ConfigError
from accel_state.mesh_layout import MeshLayout

FORMAT = "accel-checkpoint"
VERSION = 1
MAX_BYTES = 64 * 2**20
"""A larger manifest cannot be ours and is not read."""


def versions() -> dict[str, str]:
    """Return the versions of Python, accel and torch, which the manifest records."""
    releases = {"python": platform.python_version()}
    for name in ("accel", "torch"):
        try:
            releases[name] = version(name)
        except PackageNotFoundError:
            releases[name] = "unknown"
    return releases


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a checkpoint.

    Attributes:
        files: The files of all ranks; files with another `place` are on another node.
        world_size: Number of ranks that saved it.
        mesh: Layout of the ranks: the size of each axis of `MeshLayout`; empty if each rank had a replica of the model.
        strategy: Training strategy, such as `ddp`; empty if any will do.
        model_format: File format of the models, such as `full`; empty if any will do.
        step: Training steps so far: backward passes that completed the gradients.
        iteration: Number of the checkpoint, if its name has one.
        place: The file system that this manifest describes.
        objects: Class names of the saved objects, by kind.
        metrics: Values by name, such as a loss, to select the best checkpoints by.
        token: Identifies the save; shared by its parts on several nodes.
        created: Time of the save, in UTC.
        packages: Versions of the packages that wrote it.
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
    metrics: Mapping[str, float] = field(default_factory=dict)
    token: str = ""
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    packages: Mapping[str, str] = field(default_factory=versions)

    @property
    def layout(self) -> MeshLayout:
        """Layout of the ranks that saved it."""
        return MeshLayout(**self.mesh) if self.mesh else MeshLayout.of_replicas(self.world_size)

    @property
    def is_of_rank_0_alone(self) -> bool:
        """Whether rank 0 saved it without the states of the other ranks."""
        return self.world_size > 1 and RANDOM_STATES.numbers(entry.name for entry in self.files) == [0]

    @property
    def files_here(self) -> list[FileEntry]:
        """The files in the same folder as this manifest."""
        return [entry for entry in self.files if entry.place == self.place]

    @property
    def nonfinite(self) -> str:
        """The first tensor with values that are not finite, and its file; empty if there is none."""
        return first_nonfinite(self.files)

    @property
    def num_bytes(self) -> int:
        """Total size of the files on all nodes."""
        return sum(entry.num_bytes for entry in self.files)


def first_nonfinite(files: Sequence[FileEntry]) -> str:
    """Return the first tensor with values that are not finite, and its file; empty if there is none."""
    return next((f"`{entry.nonfinite}` of `{entry.name}`" for entry in files if entry.nonfinite), "")


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest to ``folder`` and force both to disk."""
    content: dict[str, Any] = {"format": FORMAT, "version": VERSION, **asdict(manifest)}
    content["seal"] = _seal_of(content)
    path = folder / MANIFEST_NAME
    with path.open("x", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
        file.flush()  # `fsync` does not write Python's buffer
        os.fsync(file.fileno())
    force_to_disk(folder)


def _seal_of(content: Mapping[str, Any]) -> str:
    """Return the digest of a manifest without its seal."""
    digest = Digest()
    digest.update(json.dumps(content).encode())
    return str(digest)


def has_manifest(folder: Path) -> bool:
    """Whether ``folder`` has a manifest, which marks a complete checkpoint."""
    try:
        (folder / MANIFEST_NAME).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def version_of(folder: Path) -> tuple[int, ...] | None:
    """Return a value that changes when another save replaces the checkpoint; None if it has no manifest."""
    try:
        # Opening it renews the attributes that NFS caches; with O_NONBLOCK, opening a pipe instead does not block.
        descriptor = os.open(folder / MANIFEST_NAME, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return status.st_ino, status.st_mtime_ns, status.st_size


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a checkpoint.

    Raises:
        CheckpointError: If it is missing, damaged, of a later format, or names files outside the folder.
    """
    path = regular_file(folder, MANIFEST_NAME)
    if path.stat().st_size > MAX_BYTES:
        raise CheckpointError(
            f"The manifest `{path}` is larger than {MAX_BYTES} bytes and is not read. "
            "Get the checkpoint from a source that you trust."
        )
    try:
        with opened(path) as file:
            content = json.loads(file.read())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"The manifest `{path}` is damaged: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(
            f"`{path}` is not the manifest of a checkpoint. Load another checkpoint, or copy this one again."
        )
    written_in = content.get("version")
    if written_in != VERSION:
        raise CheckpointError(
            f"The checkpoint `{folder}` has format version {written_in!r}; this release reads {VERSION}. "
            "Load it with the release that wrote it."
        )
    seal = content.pop("seal", None)  # earlier releases wrote none
    if seal is not None and seal != _seal_of(content):
        raise CheckpointError(
            f"The manifest `{path}` is damaged: its digest differs. Load another checkpoint, or copy this one again."
        )
    try:
        files = [FileEntry(**_known(FileEntry, entry)) for entry in content["files"]]
        manifest = Manifest(**{**_known(Manifest, content), "files": files})
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"The manifest `{path}` is damaged: {error}") from error
    _check(manifest, path)
    return manifest


def check_complete(folder: Path, *, token: str | None = None) -> None:
    """Check that the manifest and all files that it lists exist, with their sizes.

    Args:
        token: Of the save that wrote it. If another save has replaced it since, nothing is checked.

    Raises:
        CheckpointError: If a file is missing or has another size.
    """
    problems = SavedFiles(folder, read_manifest(folder).files_here).problems(digests=False)
    if problems and token in (None, read_manifest(folder).token):
        raise CheckpointError(
            f"Another program has changed `{folder}`. {' '.join(problems)} Keep clean-up jobs away, and save again."
        )


def saved_files(folder: Path) -> SavedFiles:
    """Return the files of the checkpoint in ``folder``, to be compared with its manifest if it has one.

    Raises:
        CheckpointError: If its manifest is damaged.
    """
    return SavedFiles(folder, read_manifest(folder).files_here if has_manifest(folder) else ())


def _known(kind: type[Manifest | FileEntry], content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that this release knows; `VERSION` changes when readers must know a new field."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in content.items() if name in names}


def _check(manifest: Manifest, path: Path) -> None:
    """Check the types of the fields in use, and the names of files.

    Raises:
        CheckpointError: If a field is invalid.
    """
    numbers = [
        manifest.world_size,
        manifest.step,
        manifest.place,
        *(each.num_bytes for each in manifest.files),
    ]
    numbers += [] if manifest.iteration is None else [manifest.iteration]
    texts = [
        manifest.token,
        manifest.strategy,
        manifest.model_format,
        *(file.digest for file in manifest.files),
    ]
    try:
        texts += [name for names in manifest.objects.values() for name in names]
        if (
            any(type(value) is not int or value < 0 for value in numbers)
            or any(type(value) is not str for value in texts)
            or any(type(value) not in (int, float) for value in manifest.metrics.values())
        ):
            raise TypeError("a field has the wrong type, or is negative")
        num_ranks = manifest.layout.world_size
    except (ConfigError, TypeError, AttributeError) as error:
        raise CheckpointError(f"The manifest `{path}` is damaged: {error}") from error
    if num_ranks != manifest.world_size:
        raise CheckpointError(
            f"The manifest `{path}` is damaged: its mesh is for {num_ranks} ranks, but {manifest.world_size} saved it. "
            "Load another checkpoint, or copy this one again."
        )
    for entry in manifest.files:
        if not is_plain_name(entry.name):
            raise CheckpointError(
                f"The manifest `{path}` names the file `{shown(entry.name)}`. Only files inside the folder are read. "
                "Get the checkpoint from a source that you trust."
            )
