"""A device map for 18,000 parameters on 8 devices."""

from tools.bench.case import Case

MODEL = """
import contextlib, io, logging, time, torch
logging.disable(logging.CRITICAL)
with torch.device("meta"):
    rows = [torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(9)]) for _ in range(1000)]
    model = torch.nn.Sequential(*rows)
limits = {number: 9 * 4 * 65 * 64 * 130 for number in range(8)}
"""

TIMED = """
for _ in range(3):
    begun = time.perf_counter()
    call()
    seconds = time.perf_counter() - begun
print(seconds * 1e3)
"""

WALK = "call = lambda: sum(p.numel() * p.element_size() for _, p in model.named_parameters())\n"


def planned_by(package: str) -> str:
    """Return the variant that plans with ``package``."""
    return (
        MODEL
        + f"from {package} import infer_auto_device_map\ncall = lambda: infer_auto_device_map(model, limits)\n"
        + TIMED
    )


case = Case(
    title="a device map for 18,000 parameters on 8 devices",
    unit="ms",
    variants={
        "walk": MODEL + WALK + TIMED,
        "ours": planned_by("accel_bigmodel"),
        "peer": planned_by("accelerate"),
    },
    baseline="walk",
)
