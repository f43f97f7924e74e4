"""Anonymous memory that forwards of 0.8 GB from disk take beyond the interpreter: the highest, sampled."""

from tools.bench.case import Case
from tools.bench.cases.bigmodel_forward import DISK
from tools.bench.cases.bigmodel_load import PLACE, PREPARE

RUN = """
import threading
from {package} import init_empty_weights, load_checkpoint_and_dispatch
def anonymous():
    text = pathlib.Path("/proc/self/status").read_text()
    return int(text.split("RssAnon:")[1].split()[0]) / 1024
with init_empty_weights():
    model = large()
with torch.no_grad():
    torch.nn.Linear(2048, 2048, bias=False)(torch.randn(1, 2048))  # what torch allocates once
before, highest, done = anonymous(), 0.0, threading.Event()
def sample():
    global highest
    while not done.wait(0.0005):
        highest = max(highest, anonymous())
sampler = threading.Thread(target=sample)
sampler.start()
with tempfile.TemporaryDirectory(dir=root) as folder:
    load_checkpoint_and_dispatch(model, root / "large", device_map={device_map}, offload_folder=folder)
    x, after = torch.randn(1, 2048), []
    with torch.no_grad():
        for _ in range(10):
            model(x)
            after.append(anonymous())
    done.set()
    sampler.join()
growth = (after[-1] - after[1]) / 8
print({result})
"""

# The first layer is resident in both.
PEAK = "highest - before - 16"


def variant(package: str, result: str) -> str:
    """Return a variant that runs with ``package`` and prints ``result``."""
    return PLACE + RUN.format(package=package, device_map=DISK, result=result)


case = Case(
    title="anonymous memory of forwards of 0.8 GB from disk (one block: 16 MiB); growth per forward",
    unit="MiB",
    variants={
        "peer": variant("accelerate", PEAK),
        "ours": variant("accel_bigmodel", PEAK),
        "ours growth": variant("accel_bigmodel", "growth"),
    },
    baseline="peer",
    prepare=PREPARE,
)
