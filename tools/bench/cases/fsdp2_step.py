"""A step of twelve blocks that two gloo processes share: what the strategy adds to `fully_shard`.

Each variant trains a second copy with plain `fully_shard` in the same processes, step by step in turn, and is divided
by it: from process to process the same step was seen to take up to 1.3 times as long.
"""

from tools.bench.case import Case
from tools.bench.loops import FAREWELL, TWO_RANKS
from tools.bench.steps_beside import CLOCK, MODEL

SHARDED = """
from torch.distributed.fsdp import fully_shard
def sharded():
    mesh, model = dist.device_mesh.init_device_mesh("cpu", (2,)), copy.deepcopy(initial)
    fully_shard(model.embed, mesh=mesh)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard([model.norm, model.head], mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)
    return with_optimizer(model)
def beside():
    return (*sharded(), torch.Tensor.backward)
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

# On a CPU, Accelerate trains with DDP despite the plugin, unless its state is set to FSDP afterwards.
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

case = Case(
    title="one step of twelve sharded blocks on two gloo processes, medians of 60",
    unit="x plain `fully_shard` in the same processes",
    variants={
        "raw fully_shard": TWO_RANKS + MODEL + SHARDED + RAW + CLOCK + FAREWELL,
        "ours": TWO_RANKS + MODEL + SHARDED + OURS + CLOCK + FAREWELL,
        "peer": TWO_RANKS + MODEL + SHARDED + PEER + CLOCK + FAREWELL,
    },
    baseline="raw fully_shard",
)
