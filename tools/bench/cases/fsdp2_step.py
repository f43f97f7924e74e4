"""A step of a model of twelve blocks that two gloo processes share: what the strategy adds to `fully_shard`."""

from tools.bench.case import Case
from tools.bench.loops import FAREWELL, TWO_RANKS

MODEL = """
import time, torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(128), nn.Linear(128, 256), nn.Linear(256, 128)
    def forward(self, rows):
        return rows + self.down(torch.relu(self.up(self.norm(rows))))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(500, 128)
        self.blocks = nn.ModuleList(Block() for _ in range(12))
        self.norm, self.head = nn.LayerNorm(128), nn.Linear(128, 500)
    def forward(self, tokens):
        rows = self.embed(tokens)
        for block in self.blocks:
            rows = block(rows)
        return self.head(self.norm(rows))
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tokens = torch.randint(500, (4, 32))
"""

RAW = """
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
fully_shard(model.embed, mesh=mesh)
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard([model.norm, model.head], mesh=mesh, reshard_after_forward=False)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
backward = torch.Tensor.backward
"""

OURS = """
from accel import Accelerator, FullyShardedDataParallelPlugin
accelerator = Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
model, optimizer = accelerator.prepare(model, optimizer)
backward = accelerator.backward
"""

# The peer trains DDP on a CPU whatever the plugin says, unless it is told afterwards that this is an FSDP run.
PEER = """
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import DistributedType
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=["Block"]
)
accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
accelerator.state.distributed_type = DistributedType.FSDP
accelerator.state.fsdp_plugin = plugin
plugin.set_auto_wrap_policy(model)
model, optimizer = accelerator.prepare(model, optimizer)
assert "FSDP" in type(model).__name__, type(model)
backward = accelerator.backward
"""

CLOCK = """
def step():
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    backward(loss)
    optimizer.step()
    optimizer.zero_grad()
for _ in range(10):
    step()
durations = []
for _ in range(60):
    begun = time.perf_counter()
    step()
    durations.append((time.perf_counter() - begun) * 1e3)
print(sorted(durations)[len(durations) // 2])
"""

case = Case(
    title="one step of twelve sharded blocks on two gloo processes, median of 60",
    unit="ms",
    variants={
        "raw fully_shard": TWO_RANKS + MODEL + RAW + CLOCK + FAREWELL,
        "ours": TWO_RANKS + MODEL + OURS + CLOCK + FAREWELL,
        "peer": TWO_RANKS + MODEL + PEER + CLOCK + FAREWELL,
    },
    baseline="raw fully_shard",
)
