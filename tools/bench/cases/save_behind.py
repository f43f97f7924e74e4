"""Blocking time of a save that is written in the background, from the second save on.

Copies and saves take turns in one process: other load on the machine affects both equally.
"""

from tools.bench.case import Case
from tools.bench.cases.save_blocking import END, SETTING, prepared

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
"""

case = Case(
    title="a checkpoint of 1.2 GB written in the background, blocking time; the best of the second to sixth",
    unit="times the best memcpy of the same process",
    variants={"ours": SETTING + prepared("accel") + TURNS + END + "print(min(saves[1:]) / min(copies[1:]))"},
    baseline="ours",
)
