"""How long a training loop stands still for a save that is written behind it, from the second save on."""

from tools.bench.case import Case
from tools.bench.cases.save_blocking import END, SETTING, prepared

COPY = """
optimizer.step()
sources = [*model.parameters(), *(value for state in optimizer.state.values() for value in state.values())]
buffers = [torch.empty_like(source, requires_grad=False) for source in sources]
def stand_still(number):
    begun = time.perf_counter()
    for buffer, source in zip(buffers, sources):
        buffer.copy_(source.detach())
    return time.perf_counter() - begun
"""

SAVE = """
def stand_still(number):
    begun = time.perf_counter()
    handle = accelerator.save_state(f"{folder}/{number}", blocking=False)
    duration_s = time.perf_counter() - begun
    handle.wait()
    shutil.rmtree(f"{folder}/{number}")
    return duration_s
"""

TIMED = """
stand_still(0)
duration_s = min(stand_still(number) for number in (1, 2, 3))
"""

case = Case(
    title="a checkpoint of 1.2 GB written behind the loop, the best of the second to fourth: the loop stands still",
    unit="s",
    variants={
        "one memcpy": SETTING + COPY + TIMED + END + "print(duration_s)",
        "ours": SETTING + prepared("accel") + SAVE + TIMED + END + "print(duration_s)",
    },
    baseline="one memcpy",
)
