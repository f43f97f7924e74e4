"""A step of twelve blocks that two gloo processes share: what the strategy adds to `fully_shard`.

Each variant trains a second copy with plain `fully_shard` in the same processes, step by step in turn, and is divided
by it: from process to process the same step was seen to take up to 1.3 times as long.
"""

from tools.bench.case import Case
from tools.bench.loops import FAREWELL, TWO_RANKS

MODEL = """
import copy, time, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
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
initial = Model()
tokens = torch.randint(500, (4, 32))
def with_optimizer(model):
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)
def sharded():
    mesh, model = dist.device_mesh.init_device_mesh("cpu", (2,)), copy.deepcopy(initial)
    fully_shard(model.embed, mesh=mesh)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard([model.norm, model.head], mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)
    return with_optimizer(model)
"""

RAW = """
dist.init_process_group("gloo")
model, optimizer = sharded()
backward = torch.Tensor.backward
"""

OURS = """
from accel import Accelerator, FullyShardedDataParallelPlugin
accelerator = Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
model, optimizer = accelerator.prepare(*with_optimizer(copy.deepcopy(initial)))
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
plugin.set_auto_wrap_policy(initial)
model, optimizer = accelerator.prepare(*with_optimizer(copy.deepcopy(initial)))
assert "FSDP" in type(model).__name__, type(model)
backward = accelerator.backward
"""

CLOCK = """
def step(model, optimizer, backward):
    begun = time.perf_counter()
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - begun
pair = [(model, optimizer, backward), (*sharded(), torch.Tensor.backward)]
durations = [[], []]
for number in range(70):
    for place in (0, 1) if number % 2 else (1, 0):
        duration = step(*pair[place])
        if number >= 10:
            durations[place].append(duration)
measured, beside = (sorted(each)[len(each) // 2] for each in durations)
print(measured / beside)
"""

case = Case(
    title="one step of twelve sharded blocks on two gloo processes, medians of 60",
    unit="x plain `fully_shard` in the same processes",
    variants={
        "raw fully_shard": TWO_RANKS + MODEL + RAW + CLOCK + FAREWELL,
        "ours": TWO_RANKS + MODEL + OURS + CLOCK + FAREWELL,
        "peer": TWO_RANKS + MODEL + PEER + CLOCK + FAREWELL,
    },
    baseline="raw fully_shard",
)
