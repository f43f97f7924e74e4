"""Stubs of the CUDA libraries that a CUDA build of torch links to, for machines without a GPU.

Such a build cannot be imported without these libraries, which are gigabytes of wheels. A stub has the name of the
library; every function in it answers "no device". Needs gcc and binutils.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

CUDA_LIBRARY = re.compile(r"NEEDED\s+(lib(?:cu|nv|nccl)\S+)")
CUDA_SYMBOL = re.compile(r"\bU ((?:__)?(?:cu|nv|nccl)\w+)")
DEFINED_SYMBOL = re.compile(r"\b[A-TV-Z] (\w+)")
NO_DEVICE = "int accel_no_device(void) { return 100; }\n"
"""Returns ``cudaErrorNoDevice`` and ``CUDA_ERROR_NO_DEVICE``."""


def output_of(*command: str | Path) -> str:
    """Run a program and return its output."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def make_stubs(torch_libraries: Path, stubs: Path) -> None:
    """Compile stubs of the CUDA libraries that the libraries of torch link to.

    The functions are in a separate library, which the named ones load: the loader demands versions of
    symbols that it finds in the library named by the reference, and of no other.
    """
    files = sorted(torch_libraries.glob("*.so*"))
    names = set(CUDA_LIBRARY.findall(output_of("objdump", "-p", *files)))
    symbols = set(CUDA_SYMBOL.findall(output_of("nm", "-D", "--undefined-only", *files)))
    symbols -= set(DEFINED_SYMBOL.findall(output_of("nm", "-D", "--defined-only", *files)))
    stubs.mkdir(exist_ok=True)
    source, library, empty = stubs / "no_device.c", stubs / "libaccel_no_device.so", stubs / "empty.c"
    aliases = (f'int {name}(void) __attribute__((alias("accel_no_device")));\n' for name in sorted(symbols))
    source.write_text(NO_DEVICE + "".join(aliases))
    output_of("gcc", "-shared", "-fPIC", "-w", "-o", library, source)
    empty.touch()
    for name in sorted(names - {file.name for file in files}):
        options = (f"-Wl,-soname,{name}", "-Wl,--no-as-needed", library, "-Wl,-rpath,$ORIGIN")
        output_of("gcc", "-shared", "-o", stubs / name, empty, *options)
