"""Loading 0.8 GB in 48 layers, and 24,576 small tensors, into skeletons, from a warm page cache."""

from tools.bench.case import Case

PLACE = """
import gc, pathlib, tempfile, time, torch
from torch import nn
torch.set_num_threads(2)
root = pathlib.Path(tempfile.gettempdir(), "accel-bench-bigmodel")
def large():
    return nn.Sequential(*[nn.Linear(2048, 2048, bias=False) for _ in range(48)])
def small():
    return nn.Sequential(*[nn.Sequential(*[nn.Linear(16, 16) for _ in range(96)]) for _ in range(128)])
"""

PREPARE = (
    PLACE
    + """
from accel_bigmodel import save_model
for name, build in (("large", large), ("small", small)):
    if not (root / name).exists():
        save_model(build(), root / name, max_shard_size="200MB")
print(0)
"""
)

READ = """
begun = time.perf_counter()
kept = [path.read_bytes() for path in sorted((root / "large").glob("*.safetensors"))]
print(time.perf_counter() - begun)
"""

ASSIGN = """
from safetensors.torch import load_file
with torch.device("meta"):
    model = {build}()
begun = time.perf_counter()
for path in sorted((root / "{build}").glob("*.safetensors")):
    model.load_state_dict(load_file(path), assign=True, strict=False)
touched = {touch}
print(time.perf_counter() - begun)
"""

LOAD = """
from {package} import init_empty_weights, load_checkpoint_in_model
with init_empty_weights():
    model = {build}()
begun = time.perf_counter()
load_checkpoint_in_model(model, root / "{build}", device_map={{"": "cpu"}}{more})
touched = {touch}
print(time.perf_counter() - begun)
"""

ALL = "sum(parameter.view(-1)[::1024].sum() for parameter in model.parameters())"
NONE = "None"

case = Case(
    title="load a checkpoint into a skeleton",
    unit="s",
    variants={
        "read": PLACE + READ,
        "ours": PLACE + LOAD.format(package="accel_bigmodel", build="large", more="", touch=ALL),
        "peer": PLACE + LOAD.format(package="accelerate", build="large", more="", touch=ALL),
        "assign lazy": PLACE + ASSIGN.format(build="large", touch=NONE),
        "ours lazy": PLACE
        + LOAD.format(package="accel_bigmodel", build="large", more=", mmap=True", touch=NONE),
        "small assign": PLACE + ASSIGN.format(build="small", touch=NONE),
        "small ours": PLACE + LOAD.format(package="accel_bigmodel", build="small", more="", touch=NONE),
        "small peer": PLACE + LOAD.format(package="accelerate", build="small", more="", touch=NONE),
    },
    baseline="read",
    prepare=PREPARE,
)
