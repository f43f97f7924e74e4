"""DeepSpeed, with the operators that it compiles on first use."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from tools.engines.preparing import PEER_FOLDER, install_apart, install_peer
from tools.environments import Environment
from tools.running import SetupError, say
from tools.workspace import ROOT

OPERATORS = ("cpu.ShareMemCommBuilder", "cpu.CPUAdamBuilder")
"""Of ``deepspeed.ops.op_builder``: what every run on CPUs loads, and one with optimizer states there."""

OLDEST = "deepspeed==0.18.9"
OLDEST_FOLDER = ROOT / "build" / "oldest-deepspeed"
"""The oldest release that accel-backends allows, whose operators are not compiled."""

CACHE = ROOT / "build" / "torch_extensions"
LOG = ROOT / "build" / "logs" / "deepspeed-operators.log"
VARIABLES = {
    "DS_ACCELERATOR": "cpu",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # as its import sets it: no body of a test leaves that behind then
    "TORCH_EXTENSIONS_DIR": str(CACHE),
    "ACCEL_TEST_PEER_FOLDER": str(PEER_FOLDER),
    "ACCEL_TEST_OLDEST_DEEPSPEED": str(OLDEST_FOLDER),
}
COMPILE = """
import sys
from operator import attrgetter
from deepspeed.ops import op_builder
import deepspeed.ops.op_builder.cpu
for name in sys.argv[1:]:
    attrgetter(name)(op_builder)().load()
"""


def installed(environment: Environment) -> list[str]:
    """Return what the operators are compiled against, such as ``torch-2.13.0+cpu``."""
    folders = environment.folder.glob("lib/python*/site-packages/*.dist-info")
    return sorted(each.stem for each in folders if each.name.startswith(("deepspeed-", "torch-")))


def compile_operators(environment: Environment, operators: Sequence[str]) -> None:
    """Compile operators, once for each version of DeepSpeed and torch."""
    for lock in CACHE.rglob("lock"):  # of a process that was killed: every later one would wait for it
        lock.unlink()
    stamp = CACHE / "compiled.txt"
    versions = set(installed(environment))
    compiled = set(stamp.read_text().split()) if stamp.is_file() else set()
    if not compiled or not versions <= compiled:
        shutil.rmtree(CACHE, ignore_errors=True)
        compiled = versions
    missing = [name for name in operators if name not in compiled]
    if not missing:
        return
    LOG.parent.mkdir(parents=True, exist_ok=True)
    command = [str(environment.python), "-c", COMPILE, *missing]
    say(f"compiling DeepSpeed's operators into {CACHE}, some minutes; log: {LOG}")
    environ = environment.child_environ() | VARIABLES
    with LOG.open("w", encoding="utf-8") as log:
        done = subprocess.run(command, cwd=ROOT, env=environ, stdout=log, stderr=log, check=False)
    if done.returncode != 0:
        raise SetupError(f"DeepSpeed's operators could not be compiled. Log: {LOG}")
    CACHE.mkdir(parents=True, exist_ok=True)
    stamp.write_text(" ".join(sorted({*compiled, *missing})))


def prepare_deepspeed(environment: Environment) -> None:
    """Compile what training on CPUs loads, and install Accelerate and the oldest DeepSpeed beside."""
    compile_operators(environment, OPERATORS)
    install_peer(environment)
    install_apart(environment, OLDEST_FOLDER, OLDEST)


def compile_disk_operators(environment: Environment) -> None:
    """Compile the operators: nine files with all of torch's headers, ten minutes of one core."""
    compile_operators(environment, (*OPERATORS, "AsyncIOBuilder"))
