"""A forward of 0.8 GB from disk, batch 1, against the resident model."""

from tools.bench.case import Case
from tools.bench.cases.bigmodel_load import PLACE, PREPARE

RUN = """
from {package} import init_empty_weights, load_checkpoint_and_dispatch
with init_empty_weights():
    model = large()
with tempfile.TemporaryDirectory(dir=root) as folder:
    load_checkpoint_and_dispatch(model, root / "large", device_map={device_map}, offload_folder=folder)
    x = torch.randn(1, 2048)
    durations = []
    with torch.no_grad():
        for _ in range(15):
            begun = time.perf_counter()
            model(x)
            durations.append(time.perf_counter() - begun)
print(statistics.median(durations))
"""

RESIDENT = '{"": "cpu"}'
# Accelerate needs one layer outside the disk.
DISK = '{"0": "cpu", **{str(n): "disk" for n in range(1, 48)}}'


def variant(package: str, device_map: str) -> str:
    """Return a variant that runs with ``package``."""
    return PLACE + RUN.format(package=package, device_map=device_map)


case = Case(
    title="forward of 0.8 GB from disk, batch 1, warm page cache",
    unit="s",
    variants={
        "resident": variant("accel_bigmodel", RESIDENT),
        "ours": variant("accel_bigmodel", DISK),
        "peer": variant("accelerate", DISK),
    },
    baseline="resident",
    prepare=PREPARE,
)
