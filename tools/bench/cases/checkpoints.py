"""Saves and loads of 100 million parameters with Adam, 1.2 GB, in the page cache.

What a load leaves in the file, to be copied when it is first written to, the first step of the optimizer pays for.
Copies and saves in the background take turns in one process: other load on the machine affects both equally.
"""

from tools.bench.measure import Case

SETTING = """
import os, shutil, tempfile, time, torch
torch.set_num_threads(2)
model = torch.nn.Sequential(*(torch.nn.Linear(1581, 1581) for _ in range(40)))
optimizer = torch.optim.Adam(model.parameters())
for parameter in model.parameters():
    parameter.grad = torch.full_like(parameter, 1e-3)
folder = tempfile.mkdtemp(dir=os.environ.get("BENCH_DIR"))
"""

TORCH = """
optimizer.step()
def save(number):
    path = f"{folder}/{number}.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
"""


def prepared(package: str, *, steps: bool = True) -> str:
    """Return the source that prepares both with ``package``; after a step, the optimizer has a state."""
    step = "optimizer.step()" if steps else ""
    return f"""
from {package} import Accelerator
accelerator = Accelerator(cpu=True)
model, optimizer = accelerator.prepare(model, optimizer)
{step}
"""


SAVE = """
def save(number):
    accelerator.save_state(f"{folder}/{number}")
"""

TURNS = """
sources = [*model.parameters(), *(value for state in optimizer.state.values() for value in state.values())]
buffers = [torch.empty_like(source, requires_grad=False) for source in sources]
def copy():
    begun = time.perf_counter()
    for buffer, source in zip(buffers, sources):
        buffer.copy_(source.detach())
    return time.perf_counter() - begun
def save():
    begun = time.perf_counter()
    handle = accelerator.save_state(f"{folder}/a", blocking=False)
    duration_s = time.perf_counter() - begun
    handle.wait()
    shutil.rmtree(f"{folder}/a")
    return duration_s
copies, saves = zip(*((copy(), save()) for _ in range(6)))
duration_s = min(saves[1:]) / min(copies[1:])
"""

TIMED_LOADS = """
def timed():
    begun = time.perf_counter()
    load()
    return time.perf_counter() - begun
duration_s = min(timed() for _ in range(3))
"""

SAVED = "save(0)\n"

WRITTEN = """
import subprocess, sys
subprocess.run([sys.executable, "-c", writer], check=True, env={**os.environ, "BENCH_FOLDER": folder})
"""

PLAIN = """
def load():
    state = torch.load(f"{folder}/0.pt", mmap=True, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
"""

COPIED = PLAIN.replace(
    "    model.load",
    """    for values in state["optimizer"]["state"].values():
        values.update({name: value.clone() for name, value in values.items()})
    model.load""",
    1,
)
"""As `PLAIN`, but nothing is left in the file."""

LOAD = """
def load():
    accelerator.load_state(f"{folder}/0")
"""


def variant(*parts: str) -> str:
    """Return the source of a variant, whose parts leave ``duration_s``."""
    return "".join((SETTING, *parts, "shutil.rmtree(folder)\nprint(duration_s)\n"))


def resumed(package: str | None, then: str = "", *, plain: str = PLAIN) -> str:
    """Return the source that lets one process save and times in another how long loading and ``then`` take."""
    there = 'folder = os.environ["BENCH_FOLDER"]\n' + SAVED
    if package is None:
        writer, load = SETTING + TORCH + there, plain
    else:
        writer, load = SETTING + prepared(package) + SAVE + there, prepared(package, steps=False) + LOAD
    timed = f"begun = time.perf_counter()\nload()\n{then}duration_s = time.perf_counter() - begun\n"
    return variant(f"writer = {writer!r}", WRITTEN, load, timed)


CASES = {
    "save_behind": Case(
        "a checkpoint of 1.2 GB written in the background, blocking time; the best of the second to sixth",
        "times the best memcpy of the same process",
        {"ours": variant(prepared("accel"), TURNS)},
    ),
    "load_checkpoint": Case(
        "load a checkpoint of 1.2 GB into a model and its Adam, the best of three",
        "s",
        {
            "plain mmap": variant(TORCH, SAVED, PLAIN, TIMED_LOADS),
            "plain mmap, copied": variant(TORCH, SAVED, COPIED, TIMED_LOADS),
            "ours": variant(prepared("accel"), SAVE, SAVED, LOAD, TIMED_LOADS),
            "peer": variant(prepared("accelerate"), SAVE, SAVED, LOAD, TIMED_LOADS),
        },
    ),
    "load_fresh": Case(
        "load a checkpoint of 1.2 GB into a model and a new Adam, in a process that has just started",
        "s",
        {
            "plain mmap": resumed(None),
            "plain mmap, copied": resumed(None, plain=COPIED),
            "ours": resumed("accel"),
            "peer": resumed("accelerate"),
        },
    ),
    "load_and_step": Case(
        "load a checkpoint of 1.2 GB in a process that has just started, and take the first step of Adam",
        "s",
        {
            "plain mmap": resumed(None, "optimizer.step()\n"),
            "ours": resumed("accel", "optimizer.step()\n"),
            "peer": resumed("accelerate", "optimizer.step()\n"),
        },
    ),
}
