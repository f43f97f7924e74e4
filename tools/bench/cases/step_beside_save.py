"""Slowdown of training steps while a checkpoint is written in the background, on two threads, until it is committed.

Stretches with and without a save take turns in one process: other load on the machine affects both equally. The
same turns without any save show the machine's own variation.
"""

from tools.bench.case import Case
from tools.bench.cases.save_blocking import END, SETTING, prepared

SAVING = """
def begin():
    handle = accelerator.save_state(f"{folder}/a", blocking=False)
    return handle.done
def end():
    shutil.rmtree(f"{folder}/a")
"""

IDLE = """
def begin():
    end = time.perf_counter() + 4
    return lambda: time.perf_counter() > end
def end():
    pass
"""

TURNS = """
import statistics
small = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6)))
inputs = torch.randn(256, 512)
def mean_step(is_over):
    begun, count = time.perf_counter(), 0
    while count < 5 or not is_over():
        small(inputs).sum().backward()
        small.zero_grad()
        count += 1
    return (time.perf_counter() - begun) / count * 1e3
def alone():
    end = time.perf_counter() + 2
    return mean_step(lambda: time.perf_counter() > end)
def beside():
    duration_ms = mean_step(begin())
    end()
    return duration_ms
alone(), beside()
free, busy = zip(*((alone(), beside()) for _ in range(3)))
"""

QUARTER = SETTING.replace("range(40)", "range(10)") + prepared("accel")
RATIO = "print(statistics.median(slow / fast for fast, slow in zip(free, busy)))"

case = Case(
    title="a training step while 0.3 GB are written in the background, on two threads",
    unit="times a step of the same process without a save",
    variants={
        "no save": QUARTER + IDLE + TURNS + END + RATIO,
        "ours": QUARTER + SAVING + TURNS + END + RATIO,
    },
    baseline="no save",
)
