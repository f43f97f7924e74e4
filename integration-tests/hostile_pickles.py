"""Files as an attacker writes them: `torch.save` archives around handmade pickles, and files of other kinds.

`HOSTILE` maps what each tries to a function that writes it to a path. `CANARY` is the file that appears if one of them
runs code.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import tempfile
import zipfile
from pathlib import Path

import torch

CANARY = Path(tempfile.gettempdir(), f"accel-canary-{os.getpid()}")
TOUCH = f"touch {CANARY}"


class Pickle:
    """A pickle of protocol 2, written opcode by opcode."""

    def __init__(self, *parts):
        self.content = b"\x80\x02"
        self.add(*parts)

    def add(self, *parts):
        """Append opcodes (bytes), texts, integers, or callables that append more."""
        for part in parts:
            if callable(part):
                part(self)
            elif isinstance(part, bytes):
                self.content += part
            elif isinstance(part, str):
                self.content += b"X" + struct.pack("<I", len(part.encode())) + part.encode()
            elif 0 <= part < 256:
                self.content += b"K" + bytes([part])
            elif -(2**31) <= part < 2**31:
                self.content += b"J" + struct.pack("<i", part)
            else:
                digits = part.to_bytes((part.bit_length() + 8) // 8, "little", signed=True)
                self.content += b"\x8a" + bytes([len(digits)]) + digits

    def __bytes__(self):
        return self.content + b"."


def named(module, name):
    """Return the opcode that names a class or a function."""
    return f"c{module}\n{name}\n".encode()


def calling(module, name, *arguments):
    """Return what calls a function with up to three arguments."""
    size = {0: b")", 1: b"\x85", 2: b"\x86", 3: b"\x87"}[len(arguments)]
    return lambda to: to.add(named(module, name), *arguments, size, b"R")


def encoded(raw):
    """Return what makes bytes, as protocol 2 writes them."""
    return calling("_codecs", "encode", raw.decode("latin1"), "latin1")


def tensor(numel, shape, strides, *, offset=0, key="0", kind="FloatStorage"):
    """Return what makes a tensor in the storage ``key``."""
    storage = (b"(", "storage", named("torch", kind), key, "cpu", numel, b"tQ")
    layout = (offset, b"(", *shape, b"t", b"(", *strides, b"t")
    return lambda to: to.add(
        named("torch._utils", "_rebuild_tensor_v2"), b"(", *storage, *layout, b"\x89",
        named("collections", "OrderedDict"), b")Rt", b"R",
    )  # fmt: skip


def sparse(index, kind="torch.sparse_coo"):
    """Return what makes a sparse tensor of shape (2,) with one value at ``index``; its records are `SPARSE_RECORDS`."""
    return lambda to: to.add(
        named("torch._utils", "_rebuild_sparse_tensor"),
        calling("torch.serialization", "_get_layout", kind),
        b"(", tensor(1, (1, 1), (1, 1), kind="LongStorage"), tensor(1, (1,), (1,), key="1"), b"(", 2, b"t\x89t\x86R",
    )  # fmt: skip


def number_dtype(code, *state):
    """Return what makes a NumPy dtype, with a state if there is one."""
    return lambda to: to.add(named("numpy", "dtype"), b"(", code, b"\x89\x88tR", *state)


def archive(*parts, records=()):
    """Return a function that writes an archive around a pickle, given by its opcodes."""

    def write(path):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
            file.writestr("archive/data.pkl", bytes(Pickle(*parts)))
            file.writestr("archive/byteorder", b"little")
            for key, content in records:
                file.writestr(f"archive/data/{key}", content)
            file.writestr("archive/version", b"3\n")

    return write


def bare(content):
    """Return a function that writes these bytes."""
    return lambda path: Path(path).write_bytes(content)


class _Runs:
    def __init__(self, function, *arguments):
        self._call = function, arguments

    def __reduce__(self):
        return self._call


def _zip_bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", b"\x80\x02N.")
        file.writestr("archive/data/0", b"\0" * (1 << 24))


def _false_sizes(path):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("archive/data.pkl", b"\x80\x02N.")
        file.writestr("archive/data/0", b"\0" * 1000)
    changed = bytearray(content.getvalue())
    entry = changed.rfind(b"PK\x01\x02")
    changed[entry + 20 : entry + 28] = struct.pack("<II", 2**31, 2**31)
    Path(path).write_bytes(changed)


def _folders_in_names(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("../../evil/data.pkl", b"\x80\x02N.")
        file.writestr("/absolute/member", b"x")


def _no_members(path):
    zipfile.ZipFile(path, "w").close()


def _torchscript(path):
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(path))


def _doubled(times):
    return b"".join(b"]q%c(h%ch%ce" % (i + 1, i, i) for i in range(times))


_system = pickle.dumps(_Runs(os.system, TOUCH), 2)
_ONE = [("0", bytes(4))]
SPARSE_RECORDS = [("0", struct.pack("<q", 10**12)), ("1", bytes(4))]
_LARGE = 2**31 - 1
_FORGED_FIELD = (
    b"(", 3, "<", b"N", "a", b"\x85", b"}", "a", number_dtype("i8"), 0, b"\x86s", 8, 8, 0, b"tb",
)  # fmt: skip

HOSTILE = {
    # runs code
    "os.system": archive(_system[2:-1]),
    "os.system in a bare file": bare(_system),
    "eval": archive(pickle.dumps(_Runs(eval, f"open({str(CANARY)!r}, 'w')"), 2)[2:-1]),
    "getattr": archive(calling("builtins", "getattr", named("os", "system"), "__call__")),
    "Popen": archive(calling("subprocess", "Popen", lambda to: to.add(b"]", "touch", b"a", str(CANARY), b"a"))),
    "a dotted name": archive(named("torch._utils", "_rebuild_tensor_v2.__globals__")),
    "a name from the stack": archive(b"\x8c\x05posix\x8c\x06system\x93", TOUCH, b"\x85R"),
    "INST": archive(b"(", TOUCH, b"ios\nsystem\n"),
    "OBJ": archive(b"(", named("os", "system"), TOUCH, b"o"),
    "EXT1": archive(b"\x82\x01"),
    "a persistent name": archive(b"Pfoo\n"),
    "torch.hub.load": archive(calling("torch.hub", "load", "a")),
    # changes classes
    "the state of a NumPy class": archive(named("numpy", "dtype"), b"N}", "foo", 1, b"s\x86b"),
    "the state of a torch class": archive(named("torch", "Tensor"), b"N}", "foo", 1, b"s\x86b"),
    "the state of the dtype of the process": archive(
        calling("numpy.dtypes", "Int64DType"), b"(", 3, ">", b"NNN", -1, -1, 0, b"tb"
    ),
    # takes memory
    "bytearray of a size": archive(calling("builtins", "bytearray", _LARGE)),
    "bytearrays of a size": archive(b"](", *[calling("builtins", "bytearray", _LARGE)] * 2, b"e"),
    "bytearray under its old name": archive(calling("__builtin__", "bytearray", _LARGE)),
    "bytearray from the memo": archive(
        b"]", named("builtins", "bytearray"), b"q\x01", "", "latin1", b"\x86Ra", b"h\x01", _LARGE, b"\x85Ra"
    ),
    "bytearray of a NumPy number": archive(
        calling("builtins", "bytearray", calling("numpy._core.multiarray", "scalar", number_dtype("i8"),
                                                 encoded(struct.pack("<q", _LARGE))))
    ),
    "bytes of a size": archive(calling("builtins", "bytes", _LARGE)),
    "bytes doubled by hex": archive(
        *[named("_codecs", "encode")] * 28, encoded(b"a"), *["hex", b"\x86R"] * 28
    ),
    "sets of one list": archive(
        b"](]q\x00(", *range(256), b"e", *[lambda to: to.add(named("builtins", "set"), b"h\x00\x85R")] * 9, b"e"
    ),
    "a storage of a size": archive(calling("torch.storage", "UntypedStorage", 2**40)),
    "a storage that fits into no file": archive(calling("torch.storage", "UntypedStorage", _LARGE)),
    "a typed storage": archive(calling("torch", "FloatStorage", 2**40)),
    "an array of a shape": archive(calling("numpy", "ndarray", lambda to: to.add(2**40, b"\x85"), "f8")),
    "an empty array of a shape": archive(
        calling("numpy._core.multiarray", "_reconstruct", named("numpy", "ndarray"), lambda to: to.add(2**33, b"\x85"),
                "O")
    ),
    "an array of objects": archive(calling("numpy", "ndarray", lambda to: to.add(2**32, b"\x85"), "O")),
    "an array of fields": archive(
        calling("numpy", "ndarray", lambda to: to.add(2**31, b"\x85"), lambda to: to.add(b"]", "a", "O", b"\x86a"))
    ),
    "a large void number": archive(
        calling("numpy._core.multiarray", "scalar", calling("numpy", "dtype", "V2147483640"))
    ),
    "a large text number": archive(calling("numpy", "ndarray", 4, "S2147483640")),
    "LONG4": archive(b"\x8b\xff\xff\xff\x3f"),
    "BINUNICODE8": archive(b"\x8d", struct.pack("<Q", 2**60), b"a"),
    "an index of the memo": archive(b"Nr\xff\xff\xff\x7f"),
    "an integer as text": archive(b"I" + b"9" * 10**6 + b"\n"),
    "FRAME": archive(b"\x95", struct.pack("<Q", 2**60), b"N"),
    "a Counter": archive(
        named("collections", "Counter"), b"}", 1, 2**62, b"s\x85R"
    ),
    "a Size": archive(calling("torch", "Size", lambda to: to.add(2**62, 2**62, b"\x86"))),
    # accesses memory outside of the file
    "a forged array": archive(
        named("numpy", "ndarray"), b"(", 1, b"\x85", number_dtype("i8", *_FORGED_FIELD), encoded(bytes(8)), b"tR"
    ),
    "a forged dtype": archive(number_dtype("i8", *_FORGED_FIELD)),
    "a parameter of text": archive(calling("torch._utils", "_rebuild_parameter", "x", b"\x88", b"}")),
    "a tensor of one value": archive(tensor(1, (2**40,), (0,)), records=_ONE),
    "a tensor beyond its storage": archive(tensor(1, (1024,), (1,)), records=_ONE),
    "a negative offset": archive(tensor(1, (1,), (1,), offset=-100), records=_ONE),
    "a negative stride": archive(tensor(4, (4,), (-1,), offset=3), records=[("0", bytes(16))]),
    "a large storage": archive(tensor(2**40, (1,), (1,)), records=_ONE),
    "a record outside": archive(tensor(1, (1,), (1,), key="../../../etc/hostname"), records=_ONE),
    "a meta tensor": archive(
        named("torch._utils", "_rebuild_meta_tensor_no_storage"), b"(", named("torch", "float32"),
        b"(", 2**50, b"t(", 1, b"t\x89tR",
    ),
    "a sparse tensor": archive(sparse(10**12), records=SPARSE_RECORDS),
    # is deep, endless or damaged
    "deep lists": archive(b"]" * 10000 + b"a" * 9999),
    "deep tuples": archive(b"N" + b"\x85" * 10000),
    "deep dicts": archive(b"}K\x01" * 10000 + b"N" + b"s" * 10000),
    "a list in itself": archive(b"]q\x00h\x00a"),
    "a dict in itself": archive(b"}q\x00", "a", b"h\x00s"),
    "doubled lists": archive(b"]q\x00" + _doubled(40)),
    "doubled lists in a dict": archive(b"}", "a", b"]q\x00" + _doubled(30), b"s"),
    "an empty pickle": bare(b""),
    "random bytes": bare(bytes(range(256)) * 16),
    "no members": _no_members,
    "compressed members": _zip_bomb,
    "false sizes": _false_sizes,
    "folders in names": _folders_in_names,
    "a tar archive": bare(b"ustar" + bytes(507)),
    "TorchScript": _torchscript,
}  # fmt: skip
