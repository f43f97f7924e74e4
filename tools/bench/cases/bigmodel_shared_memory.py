"""Four processes with one model of 0.8 GB on the CPU: proportional memory, summed, in models."""

from tools.bench.case import Case
from tools.bench.cases.bigmodel_load import PLACE, PREPARE

FOUR = """
import subprocess, sys
source = '''
import sys
{place}
from {package} import init_empty_weights, load_checkpoint_in_model
def proportional():
    text = pathlib.Path("/proc/self/smaps_rollup").read_text()
    return int(text.split("Pss:")[1].split()[0]) * 1024
with init_empty_weights():
    model = large()
base = proportional()
load_checkpoint_in_model(model, root / "large", device_map={{"": "cpu"}}{more})
with torch.no_grad():
    model(torch.randn(1, 2048))
print("ready", flush=True)
sys.stdin.readline()
print(proportional() - base, flush=True)
sys.stdin.readline()
'''
started = [
    subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for _ in range(4)
]
for each in started:
    assert each.stdout.readline() == "ready\\n"
for each in started:
    each.stdin.write("measure\\n")
    each.stdin.flush()
found = [int(each.stdout.readline()) for each in started]
for each in started:
    each.communicate("end\\n", timeout=60)
print(sum(found) / (48 * 2048 * 2048 * 4))
"""


def variant(package: str, more: str = "") -> str:
    """Return the variant that loads with ``package``."""
    return FOUR.format(place=PLACE, package=package, more=more)


case = Case(
    title="four processes, one model: summed proportional memory",
    unit="models",
    variants={"ours": variant("accel_bigmodel", ", mmap=True"), "peer": variant("accelerate")},
    baseline="ours",
    prepare=PREPARE,
)
