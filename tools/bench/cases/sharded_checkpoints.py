"""Saves and loads of a model of 402 MB that two gloo processes share, to the end on both of them.

What accel and torch's DCP (`sync_files=True`) write is on the disk then. Accelerate and torch's `save_file` leave it in
the page cache; the variants with fsync do not. Loads are from the page cache; accel also looks through its manifest.
"""

from tools.bench.measure import Case
from tools.bench.two_ranks import FAREWELL, TWO_RANKS

MODEL = """
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
    def forward(self, rows):
        return rows + self.down(torch.relu(self.up(rows)))
class Model(nn.Module):
    def __init__(self, width=1024, num_blocks=24):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(num_blocks))
    def forward(self, rows):
        for block in self.blocks:
            rows = block(rows)
        return rows
import gc, os, pathlib, shutil, tempfile, time, warnings
import torch.distributed as dist
warnings.simplefilter("ignore")
torch.set_num_threads(1)
torch.manual_seed(0)
model = Model()
folder = pathlib.Path(os.environ.get("BENCH_DIR", tempfile.gettempdir())) / f"accel-bench-{port}"
folder.mkdir(exist_ok=True)
def force_to_disk(path):
    for file in path.rglob("*"):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
"""
"""402 MB; the largest tensor has 8 MiB."""

OURS = """
from accel import Accelerator, FullyShardedDataParallelPlugin
accelerator = Accelerator(
    cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="{kind}_STATE_DICT")
)
model = accelerator.prepare(model)
save, load = accelerator.save_state, accelerator.load_state
"""

# On a CPU, Accelerate trains with DDP despite the plugin, unless its state is set to FSDP afterwards. It wants
# an optimizer with the model; its `save_state` calls this function, and still takes the run for one of DDP.
PEER = """
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import DistributedType, load_fsdp_model, save_fsdp_model
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2, state_dict_type="{kind}_STATE_DICT",
    auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"],
)
accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
accelerator.state.distributed_type = DistributedType.FSDP
accelerator.state.fsdp_plugin = plugin
plugin.set_auto_wrap_policy(model)
model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
assert "FSDP" in type(model).__name__, type(model)
def save(path):
    save_fsdp_model(plugin, accelerator, model, str(path))
def load(path):
    load_fsdp_model(plugin, accelerator, model, str(path))
"""

RAW = """
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
"""

RAW_SAVE = {
    "FULL": """
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
def save(path):
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        path.mkdir()
        save_file(state, path / "model.safetensors")
    dist.barrier()
""",
    "SHARDED": """
import torch.distributed.checkpoint as dcp
def save(path):
    dcp.save({"model": model.state_dict()}, storage_writer=dcp.FileSystemWriter(path, sync_files=True))
def load(path):
    state = model.state_dict()
    dcp.load({"model": state}, storage_reader=dcp.FileSystemReader(path))
    model.load_state_dict(state)
""",
}

WITH_FSYNC = """
save_only = save
def save(path):
    save_only(path)
    if rank == 0:
        force_to_disk(path)
    dist.barrier()
"""

TIMED = """
def timed(number):
    dist.barrier()
    begun = time.perf_counter()
    save(folder / str(number))
    dist.barrier()
    taken_s = time.perf_counter() - begun
    if rank == 0:
        shutil.rmtree(folder / str(number))
    dist.barrier()
    return taken_s
print(sorted(timed(number) for number in range(5))[2])
"""
"""The median of five saves."""

TIMED_LOADS = """
def local(parameter):
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter
saved = [local(parameter).detach().clone() for parameter in model.parameters()]
save(folder / "saved")
dist.barrier()
def timed():
    with torch.no_grad():
        for parameter in model.parameters():
            local(parameter).zero_()
    dist.barrier()
    begun = time.perf_counter()
    load(folder / "saved")
    dist.barrier()
    taken_s = time.perf_counter() - begun
    assert all(torch.equal(local(p), value) for p, value in zip(model.parameters(), saved, strict=True))
    return taken_s
print(sorted(timed() for _ in range(5))[2])
"""
"""The median of five loads; the files were just written, so they are in the page cache."""

MEASURED = """
def memory(name):
    text = pathlib.Path("/proc/self/status").read_text()
    return int(text.split(name + ":")[1].split()[0]) / 1024
gc.collect()
dist.barrier()
pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
begun = memory("VmRSS")
save(folder / "measured")
taken = torch.tensor([memory("VmHWM") - begun])
of_rank = [torch.empty(1) for _ in range(2)]
dist.all_gather(of_rank, taken)
print(float(of_rank[{rank}]))
"""
"""The highest resident memory of one rank over that at the start."""

END = """
dist.barrier()
if rank == 0:
    shutil.rmtree(folder)
"""


def variant(prepared: str, measured: str) -> str:
    """Return the source of a variant."""
    return TWO_RANKS + MODEL + prepared + measured + END + FAREWELL


CASES = {
    "fsdp2_full_save_memory": Case(
        "memory that a full save of 402 MB takes above the start, by rank (the largest tensor: 8 MiB)",
        "MiB",
        {
            f"{name}, {who}": variant(prepared, MEASURED.format(rank=rank))
            for name, prepared in (
                ("ours", OURS.format(kind="FULL")),
                ("raw", RAW + RAW_SAVE["FULL"]),
                ("peer", PEER.format(kind="FULL")),
            )
            for rank, who in enumerate(("writer", "other"))
        },
    ),
    "fsdp2_sharded_save": Case(
        "a sharded save of 402 MB by two processes, the median of five",
        "s",
        {
            "raw DCP": variant(RAW + RAW_SAVE["SHARDED"], TIMED),
            "ours": variant(OURS.format(kind="SHARDED"), TIMED),
            "peer, fsync": variant(PEER.format(kind="SHARDED") + WITH_FSYNC, TIMED),
            "peer": variant(PEER.format(kind="SHARDED"), TIMED),
        },
    ),
    "fsdp2_sharded_load": Case(
        "loading a sharded checkpoint of 402 MB by two processes, the median of five",
        "s",
        {
            "raw DCP": variant(RAW + RAW_SAVE["SHARDED"], TIMED_LOADS),
            "ours": variant(OURS.format(kind="SHARDED"), TIMED_LOADS),
            "peer": variant(PEER.format(kind="SHARDED"), TIMED_LOADS),
        },
    ),
}
