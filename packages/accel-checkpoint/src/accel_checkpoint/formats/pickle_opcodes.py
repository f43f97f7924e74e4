"""Check the opcodes of a pickle before it is loaded, so that it takes memory in proportion to its size."""

from __future__ import annotations

import mmap
import re
from _compat_pickle import IMPORT_MAPPING

_PLAIN = rb"[()\]}NRQbuesat\x81\x85-\x89\x8f\x90\x91\x93\x94]|[K\x80].|M..|J....|\x8a\x05.{5}|[G\x95].{8}"
_ONE = re.compile(_PLAIN, re.DOTALL)
_RUN = re.compile(rb"(?:%s)*+" % _PLAIN.replace(b"]|", b"]++|", 1), re.DOTALL)
_RUN_WITH_GETS = re.compile(rb"(?:%s|h.|j....)*+" % _PLAIN.replace(b"]|", b"]++|", 1), re.DOTALL)
_NUMBER_BYTES = {  # of an index, or of a length that as many bytes follow
    bytes([opcode]): size
    for size, opcodes in ((1, b"qhUC\x8c\x8a"), (4, b"rjXB"), (8, b"\x8d\x8e\x96"))
    for opcode in opcodes
}
_STATE_OF_DTYPE = (rb"\(", b"K\3", b"text:[<>=|]", *3 * (b"N",), *2 * (b"J\xff{4}",), b"K\0", b"t", b"b")
_AFTER_DTYPE = rb"(?!\(|name:).*|name:(_codecs\.encode|numpy\.dtype)"
"""What is not the beginning of another state for it: NumPy does not check states, and may crash (NumPy 2.4)."""
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
"""What may follow a callable that copies its argument, or takes a size or a state: the argument itself is there."""


def check_pickle(pickled: bytes | mmap.mmap, start: int = 0) -> int:
    """Return the end of the pickle that begins at ``start``.

    Raises:
        ValueError: If it is cut short, or has what no pickle of plain data has: other opcodes, a memo index beyond its
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
            begin, position = position + size, position + size + number
            latest = b"text:" + (pickled[begin:position] if number <= 16 else b"")
        elif opcode == b"c":
            middle = pickled.find(b"\n", position)
            end = pickled.find(b"\n", max(middle, position) + 1)
            module = pickled[position:middle].decode()
            latest = f"name:{IMPORT_MAPPING.get(module, module)}.".encode() + pickled[middle + 1 : end]
            position = end + 1 if end >= 0 else len(pickled) + 1
        elif one := _ONE.match(pickled, position - 1):
            latest, position = one[0], one.end()
        elif opcode:
            raise ValueError(f"its opcode {opcode!r} is not one of plain data")
        if position > len(pickled):
            raise ValueError("it is cut short")
        if awaited and re.fullmatch(awaited[0], latest, re.DOTALL) is None:
            raise ValueError("it calls something whose argument is not written out")
        is_unknown = latest == b"" and awaited[:1] == (_AFTER_DTYPE,)  # no state, if the two become a tuple
        awaited = ((b"\x86",) if is_unknown else _ARGUMENTS.get(latest, ())) + awaited[1:]
