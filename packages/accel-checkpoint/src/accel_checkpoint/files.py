"""The files of checkpoints: safe paths, digests that detect damage, and writes that survive a power failure.

The digest is XXH3, which is faster than memory; with 128 bits it misses damage with a probability of 2^-128. It is the
digest of the digests of blocks, so that several threads can check one file. It does not protect against deliberate
changes, since an attacker can also change the manifest. It starts with the name of the algorithm: files that earlier
releases saved have the CRC-32 of zip files.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from io import BufferedReader
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Self, TypeVar

import xxhash

from accel_state.errors import CheckpointError, ConfigError

_BLOCK_BYTES = 16 * 2**20
"""Files of one block are not worth a thread."""
_READ_BYTES = 2**20
"""Stays in the processor's cache."""
_DIGEST = "xxh3-16m"
_EARLIER_DIGEST = "crc32"
_NUM_THREADS = 4
_MAX_PROBLEMS = 20
_MAX_NAME = 4096
"""Longer paths do not exist."""
_T = TypeVar("_T")


class DamagedFileError(CheckpointError):
    """A file of a checkpoint is not what was saved; an error also for loads that are not strict."""


def is_plain_name(name: object) -> bool:
    """Whether ``name`` is a relative path inside the folder on every operating system, separated by `/`."""
    if not isinstance(name, str) or "\\" in name or "\0" in name or name[1:2] == ":":  # the drive of Windows
        return False
    if len(name) > _MAX_NAME:
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))


def shown(name: object) -> str:
    """Return a name from a file, safe for a message: without control characters, and not too long."""
    return repr(name)[1:-1][:200] if isinstance(name, str) else repr(name)[:200]


def resolved(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path without links.

    Raises:
        ConfigError: If it has a null character, or a cycle of links.
    """
    try:
        return Path(path).resolve()
    except (ValueError, RuntimeError, OSError) as error:
        raise ConfigError(f"The path `{shown(os.fspath(path))}` cannot be used: {error}.") from error


def regular_file(folder: Path, name: str) -> Path:
    """Return the path of a file of a checkpoint.

    It may be a symbolic link to a regular file, as in the cache of the Hugging Face Hub.

    Raises:
        CheckpointError: If it is missing, in a folder that is a symbolic link, or not a regular file.
    """
    if not is_plain_name(name):
        raise CheckpointError(
            f"`{shown(name)}` is not the plain name of a file in `{folder}`. Name a file without its folder."
        )
    path = folder
    for part in name.split("/"):
        path = path / part
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            raise CheckpointError(
                f"`{shown(name)}` is missing in the checkpoint `{folder}`. "
                "Load another checkpoint, or copy this one again with all its files."
            ) from None
        if stat.S_ISLNK(mode) and path.is_file():
            mode = path.stat().st_mode
        if stat.S_ISLNK(mode):
            raise CheckpointError(
                f"`{path}` is a symbolic link, but not to a regular file. Replace it with the regular file."
            )
    check_regular(path)
    return path


def raise_read_error(path: Path, error: Exception) -> None:
    """Raise the `OSError` behind a failed read, with a hint; return if the content of the file is to blame.

    `zipfile` replaces it by an error that calls the file damaged.
    """
    cause = error if isinstance(error, OSError) else error.__context__
    if not isinstance(cause, OSError) or cause.errno in (None, errno.EINVAL, errno.ENOENT):
        return  # a damaged file leads to invalid offsets
    if cause is error and error.__cause__ is not None:
        return  # it has a hint already
    trace = cause.__traceback__
    if cause is error or (trace is not None and trace.tb_frame.f_globals.get("__name__") == "zipfile"):
        hint = "It may be intact: check its permissions and its disk, and load it again."
        raise OSError(cause.errno, f"`{path}` cannot be read: {cause.strerror}. {hint}") from error


def check_regular(path: Path) -> None:
    """Check that ``path`` is not a folder, a device or a pipe, which would block the process that opens it.

    Raises:
        CheckpointError: If it is.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise CheckpointError(f"`{path}` is not a regular file. Replace it with one.")


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """Open a file to read it in the block, whose failed reads raise an error with a hint.

    Raises:
        CheckpointError: If it is not a regular file.
    """
    check_regular(path)
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise_read_error(path, error)
        raise


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        CheckpointError: If it is not readable.
    """
    try:
        with opened(path) as file:
            return json.loads(file.read())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"`{path}` is not readable JSON: {error}. Copy or save it again.") from error


class Digest:
    """The digest of all bytes passed to `update`."""

    num_bytes_of_all = 0  # passed to all digests of this process so far
    _counting = threading.Lock()

    def __init__(self) -> None:
        self._blocks, self._block = xxhash.xxh3_128(), xxhash.xxh3_128()
        self._room = _BLOCK_BYTES

    def update(self, data: bytes | memoryview) -> None:
        """Add the next bytes; releases the GIL."""
        rest = memoryview(data)
        Digest._count(len(rest))
        while len(rest):
            part, rest = rest[: self._room], rest[self._room :]
            self._block.update(part)
            self._room -= len(part)
            if not self._room:
                self._blocks.update(self._block.digest())
                self._block.reset()
                self._room = _BLOCK_BYTES

    def __str__(self) -> str:
        blocks = self._blocks.copy()
        if self._room < _BLOCK_BYTES:
            blocks.update(self._block.digest())
        return f"{_DIGEST}:{blocks.hexdigest()}"

    @classmethod
    def _count(cls, num_bytes: int) -> None:
        with cls._counting:
            cls.num_bytes_of_all += num_bytes


def digest_of(path: Path, *, like: str = _DIGEST) -> str:
    """Return the digest of a file, by the algorithm of the digest ``like``."""
    if path.stat().st_size <= _BLOCK_BYTES:
        return _start_digest(path, like, None)()
    with _digest_threads() as threads:
        return _start_digest(path, like, threads)()


def _digest_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_NUM_THREADS, os.cpu_count() or 1), thread_name_prefix="accel-digest")


def _start_digest(path: Path, like: str, threads: ThreadPoolExecutor | None) -> Callable[[], str]:
    """Start to compute a digest in threads; return a function that waits for it, or without threads computes it."""

    def submit(work: Callable[..., _T], *arguments: object) -> Callable[[], _T]:
        return partial(work, *arguments) if threads is None else threads.submit(work, *arguments).result

    if like.startswith(_EARLIER_DIGEST):
        return submit(_crc32_of, path)
    blocks = [submit(_digest_of_block, path, start) for start in range(0, path.stat().st_size, _BLOCK_BYTES)]
    return lambda: f"{_DIGEST}:{xxhash.xxh3_128(b''.join(block() for block in blocks)).hexdigest()}"


def _digest_of_block(path: Path, start: int) -> bytes:
    digest = xxhash.xxh3_128()
    for data in _read(path, start, _BLOCK_BYTES):
        digest.update(data)
    return digest.digest()


def _crc32_of(path: Path) -> str:
    value = 0
    for data in _read(path, 0, path.stat().st_size):
        value = zlib.crc32(data, value)
    return f"{_EARLIER_DIGEST}:{value:08x}"


def _read(path: Path, start: int, num_bytes: int) -> Iterator[memoryview]:
    """Yield the bytes of a file, in a buffer that is reused."""
    buffer = memoryview(bytearray(min(num_bytes, _READ_BYTES)))
    with opened(path) as file:
        file.seek(start)
        while num_bytes and (num_read := file.readinto(buffer[:num_bytes])):
            num_bytes -= num_read
            Digest._count(num_read)
            yield buffer[:num_read]


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a checkpoint, in its manifest.

    Attributes:
        name: Path relative to the folder, separated by `/`.
        num_bytes: Size of the file.
        digest: Digest of the content.
        rank: The rank that wrote it.
        place: Its file system: 0 for rank 0's, otherwise the rank of the node.
        nonfinite: Name of the first tensor in it with values that are not finite; empty if there is none, or if the
            file is not one of weights or of an optimizer.
    """

    name: str
    num_bytes: int
    digest: str
    rank: int = 0
    place: int = 0
    nonfinite: str = ""


class SavedFiles:
    """The files of one checkpoint. Each is compared with its digest in the manifest when its path is first requested.

    In a `with` block, threads compute the digests of large files while these are read, and the end of the block
    compares them: do not use their content before that. Other files, and all files outside of a block, are compared
    at once.

    Args:
        folder: The folder of the checkpoint.
        entries: The entries of its manifest; without one, as in other packages' checkpoints, nothing is compared.
        hint: Returns a hint for the error of a damaged file, such as another checkpoint.
    """

    def __init__(
        self, folder: Path, entries: Iterable[FileEntry] = (), *, hint: Callable[[], str] = str
    ) -> None:
        self.folder = folder
        self._hint = hint
        self._entries = {entry.name: entry for entry in entries}
        self._compared = set[str]()
        self._waiting: list[tuple[Path, Callable[[], str], str]] = []
        self._threads: ThreadPoolExecutor | None = None
        self._is_in_block = False

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all files in the folder, listed in the manifest or not."""
        return frozenset(files_below(self.folder))

    def path(self, name: str) -> Path:
        """Return the path of a file.

        Raises:
            DamagedFileError: If its digest differs; for a large file, at the end of the `with` block.
            CheckpointError: As `regular_file`.
        """
        path = regular_file(self.folder, name)
        entry = self._entries.get(name)
        if entry is not None and name not in self._compared:
            if self._is_in_block and entry.num_bytes > _BLOCK_BYTES:
                self._threads = self._threads or _digest_threads()
                self._waiting.append((path, _start_digest(path, entry.digest, self._threads), entry.digest))
            else:
                self._compare(path, digest_of(path, like=entry.digest), entry.digest)
            self._compared.add(name)
        return path

    def _compare(self, path: Path, digest: str, expected: str) -> None:
        if digest != expected:
            raise DamagedFileError(
                f"`{path}` is not what was saved: its digest differs. Load another checkpoint, or copy this one again."
                f"{self._hint()}"
            )

    def compare_all(self) -> None:
        """Compare all files that the manifest lists."""
        for name in self._entries:
            self.path(name)

    def problems(self, *, digests: bool) -> list[str]:
        """Return one message per file that differs from the manifest, for the first of them.

        Args:
            digests: Compare digests, which reads every file; otherwise compare sizes only.
        """
        messages: list[str] = []
        for entry in self._entries.values():
            if len(messages) == _MAX_PROBLEMS:
                return [*messages, "There are more."]
            try:
                path = regular_file(self.folder, entry.name)
                size = path.stat().st_size
            except CheckpointError as error:
                messages.append(str(error))
                continue
            if size != entry.num_bytes:
                messages.append(f"`{shown(entry.name)}` has {size} bytes instead of {entry.num_bytes}.")
            elif digests and digest_of(path, like=entry.digest) != entry.digest:
                messages.append(f"`{shown(entry.name)}` is not what was saved: its digest differs.")
        return messages

    def __enter__(self) -> Self:
        self._is_in_block = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # Damage explains any other error; an interruption does not wait for the threads.
            if error is None or isinstance(error, Exception):
                for path, digest, expected in self._waiting:
                    self._compare(path, digest(), expected)
        finally:
            if self._threads is not None:
                self._threads.shutdown(cancel_futures=True)
            self._threads, self._is_in_block = None, False
            self._waiting.clear()


def remove_folder(folder: Path, *, ignore_errors: bool = False) -> None:
    """Remove a folder with its content, or a symbolic link to one."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=ignore_errors)


def files_below(folder: Path) -> Iterator[str]:
    """Yield the sorted names of all files in ``folder`` and its subfolders; links are not followed."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            yield from (f"{entry.name}/{name}" for name in files_below(Path(entry.path)))
        else:
            yield entry.name


def folders_of(names: Iterable[str]) -> list[str]:
    """Return all parent folders of these file names, children before their parents, `.` last."""
    folders = {str(folder) for name in names for folder in PurePosixPath(name).parents}
    return sorted(folders, key=lambda folder: (-len(PurePosixPath(folder).parts), folder))


def make_durably(folder: Path) -> None:
    """Create a folder and its missing parents, and force them to disk; does nothing if it exists."""
    missing = [folder] if not folder.exists() else []
    while missing and not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        force_to_disk(made.parent)


def force_to_disk(path: Path) -> None:
    """Flush the file or folder at ``path`` to disk (`fsync`)."""
    if os.name != "posix" and path.is_dir():
        return  # Windows cannot open folders; its file system journals renames.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
