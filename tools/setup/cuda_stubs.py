"""Stubs of the CUDA libraries that a CUDA build of torch links to, for machines without a GPU.

Such a build cannot be imported without these libraries, which are gigabytes of wheels. A stub has the name of the
library; every function in it answers "no device". Needs gcc and binutils.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.setup.running import SetupError, environment_with
from tools.workspace import ROOT

LOG = ROOT / "build" / "logs" / "cuda-stubs.log"
CUDA_LIBRARY = re.compile(r"NEEDED\s+(lib(?:cu|nv|nccl)\S+)")
CUDA_SYMBOL = re.compile(r"\bU ((?:__)?(?:cu|nv|nccl)\w+)")
DEFINED_SYMBOL = re.compile(r"\b[A-TV-Z] (\w+)")
NO_DEVICE = 100
"""``cudaErrorNoDevice`` and ``CUDA_ERROR_NO_DEVICE``."""


def run_logged(command: Sequence[str | Path]) -> str:
    """Run a program of the set-up and return its output. Raises ``SetupError`` that names the log."""
    words = [str(word) for word in command]
    done = subprocess.run(words, env=environment_with(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        LOG.parent.mkdir(parents=True, exist_ok=True)
        LOG.write_text(f"{' '.join(words)}\n{done.stdout}{done.stderr}", encoding="utf-8")
        raise SetupError(
            f"CUDA's libraries could not be replaced by stubs: `{Path(words[0]).name}` failed. Log: {LOG}"
        )
    return done.stdout


def stub_source(symbols: Iterable[str]) -> str:
    """Return C source that defines every symbol as a function that returns "no device"."""
    lines = [f"int accel_no_device(void) {{ return {NO_DEVICE}; }}"]
    lines += [f'int {name}(void) __attribute__((alias("accel_no_device")));' for name in symbols]
    return "\n".join(lines) + "\n"


def make_stubs(torch_libraries: Path, stubs: Path) -> None:
    """Compile stubs of the CUDA libraries that the libraries of torch link to.

    The functions are in a separate library, which the named ones load: the loader demands versions of
    symbols that it finds in the library named by the reference, and of no other.
    """
    files = sorted(torch_libraries.glob("*.so*"))
    names = set(CUDA_LIBRARY.findall(run_logged(["objdump", "-p", *files])))
    symbols = set(CUDA_SYMBOL.findall(run_logged(["nm", "-D", "--undefined-only", *files])))
    symbols -= set(DEFINED_SYMBOL.findall(run_logged(["nm", "-D", "--defined-only", *files])))
    stubs.mkdir(exist_ok=True)
    source = stubs / "no_device.c"
    source.write_text(stub_source(sorted(symbols)))
    library = stubs / "libaccel_no_device.so"
    run_logged(["gcc", "-shared", "-fPIC", "-w", "-o", library, source])
    empty = stubs / "empty.c"
    empty.touch()
    for name in sorted(names - {file.name for file in files}):
        run_logged(
            ["gcc", "-shared", "-o", stubs / name, empty, f"-Wl,-soname,{name}", "-Wl,--no-as-needed", library,
             "-Wl,-rpath,$ORIGIN"]
        )  # fmt: skip
