"""Loading 0.8 GB in 48 layers into a skeleton, from a warm page cache."""

from tools.bench.case import Case

PLACE = """
import pathlib, statistics, tempfile, time, torch
from torch import nn
torch.set_num_threads(2)
root = pathlib.Path(tempfile.gettempdir(), "accel-bench-safetensors")
def large():
    return nn.Sequential(*[nn.Linear(2048, 2048, bias=False) for _ in range(48)])
"""

# Files as safetensors and transformers write them: with a header of any length, so not aligned for kernels.
PREPARE = (
    PLACE
    + """
import json
from safetensors.torch import save_file
def write(folder, state, shard_bytes):
    folder.mkdir(parents=True)
    shards, filled = [{}], 0
    for name, tensor in state.items():
        if filled + tensor.nbytes > shard_bytes and shards[-1]:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += tensor.nbytes
    files = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    for file, shard in zip(files, shards):
        save_file(shard, folder / file, metadata={"format": "pt"})
    weight_map = {name: file for file, shard in zip(files, shards) for name in shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
if not (root / "large" / "model.safetensors.index.json").exists():
    write(root / "large", large().state_dict(), 200_000_000)
for path in root.glob("*/*"):
    path.read_bytes()
print(0)
"""
)

THRICE = """
durations = []
for _ in range(3):
    model = kept = None
    durations.append(measured())
print(statistics.median(durations))
"""

READ = """
def measured():
    global kept
    begun = time.perf_counter()
    kept = [path.read_bytes() for path in sorted((root / "large").glob("*.safetensors"))]
    return time.perf_counter() - begun
"""

ASSIGN = """
from safetensors.torch import load_file
def measured():
    global model
    with torch.device("meta"):
        model = large()
    begun = time.perf_counter()
    for path in sorted((root / "large").glob("*.safetensors")):
        model.load_state_dict(load_file(path), assign=True, strict=False)
    touched = {touch}
    return time.perf_counter() - begun
"""

LOAD = """
from {package} import init_empty_weights, load_checkpoint_in_model
def measured():
    global model
    with init_empty_weights():
        model = large()
    begun = time.perf_counter()
    load_checkpoint_in_model(model, root / "large", device_map={{"": "cpu"}}{more})
    touched = {touch}
    return time.perf_counter() - begun
"""

ALL = "sum(parameter.view(-1)[::1024].sum() for parameter in model.parameters())"
NONE = "None"


def loaded(package: str, touch: str, more: str = "") -> str:
    """Return the variant that loads with ``package``."""
    return PLACE + LOAD.format(package=package, touch=touch, more=more) + THRICE


case = Case(
    title="load 0.8 GB into a skeleton, all bytes touched (lazy: none)",
    unit="s",
    variants={
        "read": PLACE + READ + THRICE,
        "ours": loaded("accel_bigmodel", ALL),
        "ours mapped": loaded("accel_bigmodel", ALL, ", mmap=True"),
        "peer": loaded("accelerate", ALL),
        "assign lazy": PLACE + ASSIGN.format(touch=NONE) + THRICE,
        "ours lazy": loaded("accel_bigmodel", NONE, ", mmap=True"),
    },
    baseline="read",
    prepare=PREPARE,
)
