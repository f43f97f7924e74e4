"""Safe reading of `torch.save` files, which can neither run code nor exhaust memory."""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.torch_version import TorchVersion

from accel_checkpoint.files import open_regular, raise_read_error
from accel_checkpoint.formats.pickle_opcodes import check_pickle
from accel_checkpoint.formats.plain_data import check_loaded, harmless_globals
from accel_state.errors import CheckpointError

DAMAGE = (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError, LookupError, AttributeError,
          ArithmeticError, AssertionError, MemoryError, SystemError, struct.error)  # fmt: skip
"""The errors that `torch.load` raises for truncated, altered or malicious files."""

_FIRST_SAFE_RELEASE = "2.10"
"""Before, a pickle can make `torch.load(weights_only=True)` run code: CVE-2026-24747."""
_are_trusted: ContextVar[bool] = ContextVar("are_trusted", default=False)


@contextmanager
def trusted_files(is_trusted: bool = True) -> Iterator[None]:
    """Read `torch.save` files in the block also with a torch before 2.10, which they can make run code.

    No other check is left out. Of no effect with later releases of torch. For the current thread.

    Args:
        is_trusted: Whether you trust whoever wrote the files; if False, the block is like any other code.
    """
    token = _are_trusted.set(is_trusted or _are_trusted.get())
    try:
        yield
    finally:
        _are_trusted.reset(token)


def torch_release() -> TorchVersion:
    """Return the release of torch that reads files."""
    return TorchVersion(torch.__version__)


def read_torch_file(
    source: Path | BinaryIO,
    *,
    path: Path | None = None,
    mmap: bool = False,
    allowed: Sequence[tuple[Callable[..., Any], str]] = (),
    archives_only: bool = True,
    **options: Any,
) -> Any:
    """Return the content of a `torch.save` file, with tensors on the CPU.

    Args:
        source: The file, or an open one.
        path: Its path, for messages.
        mmap: Map tensors of archives into memory instead of reading them. Copy them before the file is removed.
        allowed: Further classes that the file may name, each with its name there; what is given stands for them.
        archives_only: Refuse files from before torch 1.6, which are no archives.
        **options: As for `torch.load`.

    Raises:
        CheckpointError: If the file is damaged, or holds anything but plain data; with a torch before 2.10, also if it
            is not in a block of `trusted_files`.
    """
    path = path or Path(str(source))
    if torch_release() < _FIRST_SAFE_RELEASE and not _are_trusted.get():
        raise CheckpointError(
            f"`{path}` is not read, since a pickle can make torch {torch_release()} run code (CVE-2026-24747). Upgrade "
            "to torch 2.10, or if you trust its writer, pass `trusted=True` or use `accel_checkpoint.trusted_files`."
        )
    with open_regular(source) if isinstance(source, Path) else nullcontext(source) as file:
        start = file.tell()
        is_archive = file.read(4) == b"PK\x03\x04"
        num_bytes = file.seek(0, os.SEEK_END)
        file.seek(start)
        if is_archive or archives_only:
            checked_members(file, path, num_bytes)
            file.seek(start)
        with naming_damage(path):
            if is_archive:
                # Read as torch does: another reader may see another member in a malicious archive.
                check_pickle(torch._C.PyTorchFileReader(file).get_record("data.pkl"))
            else:
                _check_pickles_of(file)
            file.seek(start)
            with torch.serialization.safe_globals([*harmless_globals(), *allowed]):
                options = {"map_location": "cpu", "mmap": mmap and is_archive, **options}
                content = torch.load(source, weights_only=True, **options)
            check_loaded(content, num_bytes=num_bytes)
            return content


def _check_pickles_of(file: BinaryIO) -> None:
    """Check the pickles at the start of a file that is no archive, whose tensors follow them."""
    content: bytes | mmap.mmap
    try:
        content, end = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), file.tell()
    except (OSError, AttributeError):  # it is in memory
        content, end = file.read(), 0
    for _ in range(5):  # a mark, a version, the system, the content, the keys of storages
        end = check_pickle(content, end) if end < len(content) else end


@contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """Turn the errors of damaged and malicious files into one that names the file.

    Raises:
        CheckpointError: In place of such an error.
    """
    try:
        yield
    except (OSError, *DAMAGE, CheckpointError) as error:
        if isinstance(error, OSError):
            raise_read_error(path, error)
        if not isinstance(error, (*DAMAGE, CheckpointError)):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if "Unsupported global" in str(error) or "GLOBAL" in str(error):
            reason = _unsafe_global_in(str(error))
        raise CheckpointError(
            f"`{path}` is not loaded: it is damaged or holds more than tensors and plain values ({reason})."
        ) from error


def checked_members(source: Path | BinaryIO | mmap.mmap, path: Path, num_bytes: int) -> list[zipfile.ZipInfo]:
    """Return the members of an archive.

    Args:
        source: The archive; it may follow other bytes.
        path: The file that it is in, for messages.
        num_bytes: Its size.

    Raises:
        CheckpointError: If `torch.save` cannot have written it: if members are compressed or overlap.
    """
    try:
        with zipfile.ZipFile(source) as archive:  # type: ignore[arg-type]
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, EOFError, struct.error, NotImplementedError, OSError) as error:
        raise_read_error(path, error)
        raise CheckpointError(
            f"`{path}` is not a readable `torch.save` file: {error}. Copy or save it again."
        ) from error
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise CheckpointError(
            f"`{path}` holds compressed data, which `torch.save` never writes; it is not loaded. "
            "Get the file from a source that you trust."
        )
    claimed = sum(member.file_size for member in members)
    if claimed > num_bytes:
        raise CheckpointError(
            f"`{path}` claims to hold {claimed} bytes but has {num_bytes}: it is truncated or malicious. "
            "Copy or save it again."
        )
    return members


def _unsafe_global_in(message: str) -> str:
    found = next((line for line in message.splitlines() if "GLOBAL" in line or "global" in line), message)
    return found.strip()[:300]
