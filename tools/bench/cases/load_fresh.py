"""How long a process that has just started takes to load a checkpoint of 100 million parameters with Adam.

The optimizer has no state yet, so that memory for it is new. The checkpoint is in the page cache.
"""

from tools.bench.case import Case
from tools.bench.cases.load_checkpoint import COPIED, LOAD, PLAIN, SAVED
from tools.bench.cases.save_blocking import END, SAVE, SETTING, TORCH, prepared

WRITTEN = """
import subprocess, sys
subprocess.run([sys.executable, "-c", writer], check=True, env={**os.environ, "BENCH_FOLDER": folder})
"""

THERE = f"""
folder = os.environ["BENCH_FOLDER"]
{SAVED}
"""

TIMED = """
begun = time.perf_counter()
load()
"""

TIMES = """
duration_s = time.perf_counter() - begun
"""


def resumed(package: str | None, what: str, *, plain: str = PLAIN) -> str:
    """Return the source that lets one process save and times in another how long loading and ``what`` take."""
    if package is None:
        writer, load = SETTING + TORCH + THERE, plain
    else:
        writer, load = SETTING + prepared(package) + SAVE + THERE, prepared(package, steps=False) + LOAD
    return (
        SETTING + f"writer = {writer!r}" + WRITTEN + load + TIMED + what + TIMES + END + "print(duration_s)"
    )


case = Case(
    title="load a checkpoint of 1.2 GB into a model and a new Adam, in a process that has just started",
    unit="s",
    variants={
        "plain mmap": resumed(None, ""),
        "plain mmap, copied": resumed(None, "", plain=COPIED),
        "ours": resumed("accel", ""),
        "peer": resumed("accelerate", ""),
    },
    baseline="plain mmap",
)
