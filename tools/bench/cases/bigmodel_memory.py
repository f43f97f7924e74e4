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
    x = torch.randn(1, 2048)
    with torch.no_grad():
        for _ in range(10):
            model(x)
    done.set()
    sampler.join()
print(highest - before - 16)  # the first layer is resident in both
"""


def variant(package: str) -> str:
    """Return a variant that runs with ``package``."""
    return PLACE + RUN.format(package=package, device_map=DISK)


case = Case(
    title="anonymous memory of forwards of 0.8 GB from disk (one block: 16 MiB)",
    unit="MiB",
    variants={"peer": variant("accelerate"), "ours": variant("accel_bigmodel")},
    baseline="peer",
    prepare=PREPARE,
)
