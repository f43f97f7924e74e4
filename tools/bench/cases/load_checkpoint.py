"""Time to load a checkpoint of 100 million parameters with Adam from the page cache."""

from tools.bench.case import Case
from tools.bench.cases.save_blocking import END, SAVE, SETTING, TORCH, prepared

TIMED = """
def timed():
    begun = time.perf_counter()
    load()
    return time.perf_counter() - begun
duration_s = min(timed() for _ in range(3))
"""

SAVED = """
save(0)
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

case = Case(
    title="load a checkpoint of 1.2 GB into a model and its Adam, the best of three",
    unit="s",
    variants={
        "plain mmap": SETTING + TORCH + SAVED + PLAIN + TIMED + END + "print(duration_s)",
        "plain mmap, copied": SETTING + TORCH + SAVED + COPIED + TIMED + END + "print(duration_s)",
        "ours": SETTING + prepared("accel") + SAVE + SAVED + LOAD + TIMED + END + "print(duration_s)",
        "peer": SETTING + prepared("accelerate") + SAVE + SAVED + LOAD + TIMED + END + "print(duration_s)",
    },
    baseline="plain mmap",
)
