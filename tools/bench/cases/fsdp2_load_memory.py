"""Memory that sharding a model of 201 MB over two gloo processes takes, by where its weights are.

The highest resident memory (VmHWM, which the kernel keeps and which is reset before) over that at the start, on the
rank that takes more. At the start, real weights are there already; a rank without them has an empty model. A shard has
96 MiB and the largest unit 16, so that at most 176 MiB are allocated.
"""

from tools.bench.block_models import BLOCK_MODEL
from tools.bench.case import Case
from tools.bench.loops import FAREWELL, TWO_RANKS

PREPARE = """
import pathlib, tempfile, torch
from safetensors.torch import save_file
folder = pathlib.Path(tempfile.gettempdir()) / "accel-bench-sharded-loading"
folder.mkdir(exist_ok=True)
shapes = {"up.weight": (2048, 1024), "up.bias": (2048,), "down.weight": (1024, 2048), "down.bias": (1024,)}
save_file(
    {f"blocks.{i}.{name}": torch.randn(shape) for i in range(12) for name, shape in shapes.items()},
    folder / "model.safetensors",
)
"""

MODEL = (
    BLOCK_MODEL
    + """
import gc, pathlib, tempfile
torch.set_num_threads(1)
torch.manual_seed(0)
folder = pathlib.Path(tempfile.gettempdir()) / "accel-bench-sharded-loading"
def prepare(model):
    return accelerator.prepare(model, torch.optim.SGD(model.parameters()))[0]
"""
)

OURS = """
from accel import Accelerator, FullyShardedDataParallelPlugin
plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
prepare(Model(8))  # imports and one-time allocations
"""

FROM_FILES = """
plugin.load_weights_from = folder
"""

MEASURE = """
with torch.device("{device_0}" if rank == 0 else "{device_1}"):
    model = Model(num_blocks=12)
gc.collect()
def memory(name):
    text = pathlib.Path("/proc/self/status").read_text()
    return int(text.split(name + ":")[1].split()[0]) / 1024
torch.distributed.barrier()
pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
begun = memory("VmRSS")
model = prepare(model)
taken = torch.tensor([memory("VmHWM") - begun])
assert "FSDP" in type(model).__name__, type(model)
assert not any(parameter.to_local().is_meta for parameter in model.parameters())
of_rank = [torch.empty(1) for _ in range(2)]
torch.distributed.all_gather(of_rank, taken)
print([round(float(one)) for one in of_rank])
print(float(max(of_rank)))
"""


def variant(prepared: str, device_0: str = "cpu", device_1: str = "cpu") -> str:
    """Return a variant with the model on these devices at the start."""
    return TWO_RANKS + MODEL + prepared + MEASURE.format(device_0=device_0, device_1=device_1) + FAREWELL


case = Case(
    title="memory to shard a model of 201 MB (a shard: 96 MiB, a unit: 16 MiB), over the start, more of two ranks",
    unit="MiB",
    variants={
        "real": variant(OURS),
        "rank 0": variant(OURS, "cpu", "meta"),
        "files": variant(OURS + FROM_FILES, "meta", "meta"),
    },
    baseline="files",
    prepare=PREPARE,
)
