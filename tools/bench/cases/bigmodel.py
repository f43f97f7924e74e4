"""A model of 0.8 GB in 48 layers: loaded into a skeleton, and run from disk, from a warm page cache."""

from tools.bench.measure import Case

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

LOAD = """
from {package} import init_empty_weights, load_checkpoint_in_model
def measured():
    global model
    with init_empty_weights():
        model = large()
    begun = time.perf_counter()
    load_checkpoint_in_model(model, root / "large", device_map={{"": "cpu"}}{more})
    sum(parameter.view(-1)[::1024].sum() for parameter in model.parameters())
    return time.perf_counter() - begun
"""


def loaded(package: str, more: str = "") -> str:
    """Return the variant that loads with ``package``."""
    return PLACE + LOAD.format(package=package, more=more) + THRICE


FORWARD = """
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

# Accelerate needs one layer outside the disk.
DISK = '{"0": "cpu", **{str(n): "disk" for n in range(1, 48)}}'


CASES = {
    "bigmodel_load": Case(
        "load 0.8 GB into a skeleton, all bytes touched",
        "s",
        {
            "read": PLACE + READ + THRICE,
            "ours": loaded("accel_bigmodel"),
            "ours mapped": loaded("accel_bigmodel", ", mmap=True"),
            "peer": loaded("accelerate"),
        },
        prepare=PREPARE,
    ),
    "bigmodel_forward": Case(
        "forward of 0.8 GB from disk, batch 1, warm page cache",
        "s",
        {
            "resident": PLACE + FORWARD.format(package="accel_bigmodel", device_map='{"": "cpu"}'),
            "ours": PLACE + FORWARD.format(package="accel_bigmodel", device_map=DISK),
            "peer": PLACE + FORWARD.format(package="accelerate", device_map=DISK),
        },
        prepare=PREPARE,
    ),
}
