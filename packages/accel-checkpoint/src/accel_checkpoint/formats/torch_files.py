"""Safe reading of `torch.save` files, which can neither run code nor exhaust memory.

A file has a pickle, and the values of its tensors. The opcodes of the pickle are checked before it is loaded, so that
it takes memory in proportion to its size, and its tensors afterwards, which may claim no more than the file has. It may
name the globals of `torch.load(weights_only=True)` and the harmless ones here.
"""

from __future__ import annotations

import mmap
import os
import pickle
import re
import struct
import zipfile
from _compat_pickle import IMPORT_MAPPING
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch.torch_version import TorchVersion
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from accel_checkpoint.files import opened, raise_read_error
from accel_state.errors import CheckpointError

DAMAGE = (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError, LookupError, AttributeError,
          ArithmeticError, AssertionError, MemoryError, SystemError, struct.error)  # fmt: skip
"""The errors that `torch.load` raises for truncated, altered or malicious files."""

_FIRST_SAFE_RELEASE = "2.10"
"""Before, a pickle can make `torch.load(weights_only=True)` run code: CVE-2026-24747."""
_are_trusted: ContextVar[bool] = ContextVar("are_trusted", default=False)

LEAVES = (type(None), bool, int, float, complex, str, bytes, bytearray, torch.Size, torch.dtype,
           torch.device)  # fmt: skip
CONTAINERS = (dict, OrderedDict, Counter, list, tuple, set)
_SPARSE_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    **dict.fromkeys((torch.sparse_csr, torch.sparse_bsr), ("crow_indices", "col_indices", "values")),
    **dict.fromkeys((torch.sparse_csc, torch.sparse_bsc), ("ccol_indices", "row_indices", "values")),
}
_NUMPY_CODES = {
    np.dtype(code).str[1:] for code in np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?"
}
_NUMPY_HOMES = ("numpy._core.multiarray", "numpy.core.multiarray")


@contextmanager
def trusted_files(is_trusted: bool = True) -> Iterator[None]:
    """Read `torch.save` files in the block also with a torch before 2.10, which they can make run code.

    All other checks apply. No effect with later releases of torch. For the current thread.

    Args:
        is_trusted: Whether you trust the writer of the files; if False, the block has no effect.
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
        allowed: Further classes that the file may name: each replacement with the name in the file.
        archives_only: Raise for files from before torch 1.6, which are not archives.
        **options: As for `torch.load`.

    Raises:
        CheckpointError: If the file is damaged, or contains anything but plain data; with a torch before 2.10, also
            outside of a block of `trusted_files`.
    """
    path = path or Path(str(source))
    if torch_release() < _FIRST_SAFE_RELEASE and not _are_trusted.get():
        raise CheckpointError(
            f"`{path}` is not read, since a pickle can make torch {torch_release()} run code (CVE-2026-24747). Upgrade "
            "to torch 2.10, or if you trust its writer, pass `trusted=True` or use `accel_checkpoint.trusted_files`."
        )
    with opened(source) if isinstance(source, Path) else nullcontext(source) as file:
        start = file.tell()
        is_archive = file.read(4) == b"PK\x03\x04"  # a zip file, as torch has written since 1.6
        num_bytes = file.seek(0, os.SEEK_END)
        file.seek(start)
        if is_archive or archives_only:
            _check_archive(file, path, num_bytes)
            file.seek(start)
        with _naming_damage(path):
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
    """Check the pickles at the start of a file that is not an archive; its tensors follow them."""
    content: bytes | mmap.mmap
    try:
        content, end = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), file.tell()
    except (OSError, AttributeError):  # it is in memory
        content, end = file.read(), 0
    for _ in range(5):  # a mark, a version, the system, the content, the keys of storages
        end = check_pickle(content, end) if end < len(content) else end


@contextmanager
def _naming_damage(path: Path) -> Iterator[None]:
    """Replace errors of damaged and malicious files.

    Raises:
        CheckpointError: For such an error; names the file.
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
            lines = (line for line in str(error).splitlines() if "GLOBAL" in line or "global" in line)
            reason = next(lines, str(error)).strip()[:300]
        raise CheckpointError(
            f"`{path}` is not loaded: it is damaged or contains more than tensors and plain values ({reason}). "
            "Copy it again from a source that you trust."
        ) from error


def _check_archive(source: BinaryIO, path: Path, num_bytes: int) -> None:
    """Reject an archive that `torch.save` cannot have written: its members are compressed, or overlap."""
    try:
        with zipfile.ZipFile(source) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, EOFError, struct.error, NotImplementedError, OSError) as error:
        raise_read_error(path, error)
        raise CheckpointError(
            f"`{path}` is not a readable `torch.save` file: {error}. Copy or save it again."
        ) from error
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise CheckpointError(
            f"`{path}` contains compressed data, which `torch.save` never writes; it is not loaded. "
            "Get the file from a source that you trust."
        )
    claimed = sum(member.file_size for member in members)
    if claimed > num_bytes:
        raise CheckpointError(
            f"`{path}` claims {claimed} bytes but has {num_bytes}: it is truncated or malicious. "
            "Copy or save it again."
        )


@cache
def harmless_globals() -> list[Callable[..., Any] | tuple[Callable[..., Any], str]]:
    """Return additional safe globals for `torch.load(weights_only=True)`: NumPy numbers, and `b""`."""
    # Registered under both paths: NumPy 2 moved them, and a file contains the path of the version that wrote it.
    builders: list[Any] = [(lambda *_: np.empty(0), "_reconstruct"), (np.float64().__reduce__()[0], "scalar")]
    kinds: list[Any] = [np.ndarray, *{type(np.dtype(code)) for code in _NUMPY_CODES}]
    return [
        *[(build, f"{home}.{name}") for build, name in builders for home in _NUMPY_HOMES],
        (_number_dtype, "numpy.dtype"),
        (_no_bytes, "numpy.ndarray"),  # a file names it, but does not call it
        (_no_bytes, "builtins.bytes"),
        # The instances of these get their state from the file. No file may name the classes: instances are shared by
        # the process (dtypes) or take any amount of memory (arrays). A name with a newline cannot be in a pickle.
        *[(kind, f"\n{kind.__name__}") for kind in kinds],
    ]


def _number_dtype(code: str, align: bool = False, copy: bool = True) -> np.dtype[Any]:
    """Replace `numpy.dtype`: return a dtype of numbers that is not shared with the process."""
    if code not in _NUMPY_CODES:
        raise ValueError(f"`{code}` is not a dtype of numbers")
    return np.dtype(code, copy=True)


def _no_bytes() -> bytes:
    """Replace `bytes`, which pickle calls without arguments for `b""`; an argument could exhaust memory."""
    return b""


def check_loaded(content: Any, *, num_bytes: int) -> None:
    """Reject forged arrays and tensors: larger than the file, or with indices outside their shape.

    Call it before anything accesses the loaded content: torch does not check the indices of sparse tensors.

    Args:
        content: The loaded content of a file.
        num_bytes: Size of the file.

    Raises:
        CheckpointError: If there is any; names its path in the content.
    """
    for where, kind in _forged_values(content, "", num_bytes, set()):
        raise CheckpointError(
            f"`{where or 'its content'}` is a forged {kind}. Delete the file: it was made to harm who loads it."
        )


def _forged_values(content: Any, where: str, num_bytes: int, seen: set[int]) -> Iterator[tuple[str, str]]:
    if is_traceable_wrapper_subclass(content):  # such as quantized: its nominal size is not what it stores
        for name in content.__tensor_flatten__()[0]:
            yield from _forged_values(getattr(content, name), f"{where}.{name}", num_bytes, seen)
    elif isinstance(content, torch.Tensor):
        if content.layout == torch.strided and content.numel() * content.element_size() > num_bytes:
            yield where, "tensor, larger than the file"
        if parts := [getattr(content, part)() for part in _SPARSE_PARTS.get(content.layout, ())]:
            for part in parts:
                yield from _forged_values(part, where, num_bytes, seen)
            make: Any = torch.sparse_coo_tensor  # checks the indices: torch accesses memory by them unchecked
            if content.layout != torch.sparse_coo:
                make = partial(torch.sparse_compressed_tensor, layout=content.layout)
            make(*parts, content.shape, check_invariants=True)
    elif isinstance(content, torch.UntypedStorage):
        if content.nbytes() > num_bytes:
            yield where, "storage, larger than the file"
    elif isinstance(content, np.ndarray):  # of numbers: `check_pickle` lets no other dtype pass
        if content.nbytes > num_bytes:
            yield where, "array, larger than the file"
    elif isinstance(content, CONTAINERS) and id(content) not in seen:
        seen.add(id(content))
        for name, value in members_of(content):
            if type(value) in LEAVES:  # such as the hundreds of numbers of a random state
                continue
            yield from _forged_values(value, f"{where}.{name}" if where else str(name), num_bytes, seen)


def members_of(content: Any) -> Iterable[tuple[Any, Any]]:
    return content.items() if isinstance(content, Mapping) else enumerate(content)


_PLAIN = rb"[()\]}NRQbuesat\x81\x85-\x89\x8f\x90\x91\x93\x94]|[K\x80].|M..|J....|\x8a\x05.{5}|[G\x95].{8}"
_SINGLE = re.compile(_PLAIN, re.DOTALL)
_RUN = re.compile(rb"(?:%s)*+" % _PLAIN.replace(b"]|", b"]++|", 1), re.DOTALL)
_RUN_WITH_GETS = re.compile(rb"(?:%s|h.|j....)*+" % _PLAIN.replace(b"]|", b"]++|", 1), re.DOTALL)
_NUMBER_BYTES = {  # of an index, or of a length that as many bytes follow
    bytes([opcode]): size
    for size, opcodes in ((1, b"qhUC\x8c\x8a"), (4, b"rjXB"), (8, b"\x8d\x8e\x96"))
    for opcode in opcodes
}
_STATE_OF_DTYPE = (rb"\(", b"K\3", b"text:[<>=|]", *3 * (b"N",), *2 * (b"J\xff{4}",), b"K\0", b"t", b"b")
_AFTER_DTYPE = rb"(?!\(|name:).*|name:(_codecs\.encode|numpy\.dtype)"
"""Anything but the start of another state for it: NumPy does not check states, and may crash (NumPy 2.4)."""
_ARGUMENTS = {
    b"name:builtins.bytearray": (rb"\)|name:_codecs\.encode",),
    b"name:builtins.set": (rb"\]",),
    b"name:_codecs.encode": (rb"text:.*", rb"text:latin-?1"),
    b"name:collections.Counter": (rb"\}",),
    b"name:collections.OrderedDict": (rb"[)\]]",),
    b"name:numpy.dtype": (
        b"text:.*",
        *2 * (b"[\x88\x89]|K.",),
        b"\x87",
        b"R",
        *_STATE_OF_DTYPE,
        _AFTER_DTYPE,
    ),
    b"dtype": (_AFTER_DTYPE,),
    b"name:torch.Size": (rb"[()]|[KMJ].*|text:.*", rb"[t\x85]|[KMJ].*|text:.*"),
}
"""Opcodes that may follow a callable that copies its argument, or takes a size or a state: the argument is written out,
so that memory is bounded by the size of the file."""


def check_pickle(pickled: bytes | mmap.mmap, start: int = 0) -> int:
    """Return the end of the pickle that starts at ``start``.

    Raises:
        ValueError: If it is truncated, or is not a pickle of plain data: it has other opcodes, a memo index beyond its
            size, or a callable such as `bytearray` whose argument is not written out.
    """
    memo: dict[int, bytes] = {}  # callables, short texts and dtypes only
    awaited: tuple[bytes, ...] = ()
    latest, position = b"", start
    while True:
        run = None if awaited else (_RUN if memo else _RUN_WITH_GETS).match(pickled, position)
        if run is not None and run.end() > position:
            latest, position = b"", run.end()
        opcode = pickled[position : position + 1]
        position += 1
        size = _NUMBER_BYTES.get(opcode, 0)
        number = int.from_bytes(pickled[position : position + size], "little")
        if opcode in (b"q", b"r"):
            position += size
            if number > max(255, len(pickled)):
                raise ValueError(f"its memo has the index {number}")
            if latest == b"R" and awaited[: len(_STATE_OF_DTYPE)] == _STATE_OF_DTYPE:
                memo[number] = b"dtype"
            elif latest.startswith(b"name:") or len(latest) > len(b"text:"):
                memo[number] = latest
            else:
                memo.pop(number, None)
            continue
        if opcode == b"." and awaited in ((), (_AFTER_DTYPE,)):
            return position
        if opcode in (b"h", b"j"):
            position += size
            latest = memo.get(number, b"")
        elif size:
            start, position = position + size, position + size + number
            latest = b"text:" + (pickled[start:position] if number <= 16 else b"")
        elif opcode == b"c":
            middle = pickled.find(b"\n", position)
            end = pickled.find(b"\n", max(middle, position) + 1)
            module = pickled[position:middle].decode()
            latest = f"name:{IMPORT_MAPPING.get(module, module)}.".encode() + pickled[middle + 1 : end]
            position = end + 1 if end >= 0 else len(pickled) + 1
        elif single := _SINGLE.match(pickled, position - 1):
            latest, position = single[0], single.end()
        elif opcode:
            raise ValueError(f"its opcode {opcode!r} is not one of plain data")
        if position > len(pickled):
            raise ValueError("it is truncated")
        if awaited and re.fullmatch(awaited[0], latest, re.DOTALL) is None:
            raise ValueError("it calls something whose argument is not written out")
        is_unknown = latest == b"" and awaited[:1] == (_AFTER_DTYPE,)  # no state, if the two become a tuple
        awaited = ((b"\x86",) if is_unknown else _ARGUMENTS.get(latest, ())) + awaited[1:]
