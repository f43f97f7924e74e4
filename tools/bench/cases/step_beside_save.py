"""How much slower a training step is while a checkpoint is written behind it, on two threads."""

from tools.bench.case import Case
from tools.bench.cases.save_blocking import END, SETTING, prepared

STEPS = """
small = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6)))
inputs = torch.randn(256, 512)
def step():
    small(inputs).sum().backward()
    small.zero_grad()
def mean_step(is_over, least):
    begun, count = time.perf_counter(), 0
    while count < least or not is_over():
        step()
        count += 1
    return (time.perf_counter() - begun) / count * 1e3
mean_step(lambda: True, 50)
accelerator.save_state(f"{folder}/0", blocking=False).wait()
"""

ALONE = "duration = mean_step(lambda: True, 400)\n"

BESIDE = """
handle = accelerator.save_state(f"{folder}/1", blocking=False)
duration = mean_step(handle.done, 1)
handle.wait()
"""

case = Case(
    title="a training step of a small model while 1.2 GB are written",
    unit="ms",
    variants={
        "alone": SETTING + prepared("accel") + STEPS + ALONE + END + "print(duration)",
        "beside a save": SETTING + prepared("accel") + STEPS + BESIDE + END + "print(duration)",
    },
    baseline="alone",
)
