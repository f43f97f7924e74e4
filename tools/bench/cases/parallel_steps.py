"""Steps that two gloo processes share: the overhead over torch's functions.

Each variant also trains a copy that is written by hand in the same processes, step by step in turn, and is divided by
it: from process to process the same step was seen to take up to 1.3 times as long. Accelerate is measured on a GPU: on
CPUs it trains with DDP instead of FSDP, rejects `tp_size`, and trains no pipelines.
"""

from tools.bench.measure import Case
from tools.bench.two_ranks import FAREWELL, TWO_RANKS

MODEL = """
import copy, time, torch
import torch.distributed as dist
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
initial = Model()
tokens = torch.randint(500, (4, 32))
def with_optimizer(model):
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)
"""
"""A model, its optimizer and a batch; a case defines `model`, `optimizer`, `backward`, and `beside()` that gives three
such for the plain copy."""

WIDE = MODEL.replace("256", "1024").replace("128", "512")
"""The same four times as wide: 13.1 million parameters, so that fixed costs weigh less."""

LONG = MODEL.replace("(4, 32)", "(4, 512)")
"""The same with 2,048 tokens instead of 128, so that costs per parameter weigh less."""

TURNS = """
durations = [[], []]
for number in range(70):
    for place in (0, 1) if number % 2 else (1, 0):
        dist.barrier()
        duration = step(*pair[place])
        if number >= 10:
            durations[place].append(duration)
measured, beside = (sorted(each)[len(each) // 2] for each in durations)
print(measured / beside)
"""
"""What a case says in ``pair`` and times in ``step``, one after the other, both ranks synchronized."""

CLOCK = (
    """
def step(model, optimizer, backward):
    begun = time.perf_counter()
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - begun
pair = [(model, optimizer, backward), beside()]
"""
    + TURNS
)
"""The median time of a step over that of the plain copy, turn by turn."""

FSDP_SHARDED = """
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


FSDP_OURS = """
from accel import Accelerator, FullyShardedDataParallelPlugin
accelerator = Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
model, optimizer = accelerator.prepare(*with_optimizer(copy.deepcopy(initial)))
backward = accelerator.backward
"""

TP_SHARED = """
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
def shared(and_sharded):
    mesh = dist.device_mesh.init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
    model = copy.deepcopy(initial)
    plan = {"embed": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel(output_layouts=Replicate())}
    for number in range(12):
        plan[f"blocks.{number}.up"], plan[f"blocks.{number}.down"] = ColwiseParallel(), RowwiseParallel()
    parallelize_module(model, mesh["tensor"], plan)
    if and_sharded:
        for block in model.blocks:
            fully_shard(block, mesh=mesh["data"])
        fully_shard([model.norm, model.head], mesh=mesh["data"], reshard_after_forward=False)
        fully_shard(model, mesh=mesh["data"])
    return with_optimizer(model)
"""

TP_BESIDE = """
def beside():
    return (*shared(and_sharded=False), torch.Tensor.backward)
"""

TP_BESIDE_SHARDED = TP_BESIDE.replace("False", "True")


TP_OURS = """
from accel import Accelerator, ParallelismConfig
Model.parallel_plan = {"units": ["blocks.*"], "tail": ["norm", "head"], "tensor": {
    "embed": "embedding_rowwise", "blocks.*.up": "colwise", "blocks.*.down": "rowwise", "head": "colwise_gather_output",
}}
accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(tp_size=2))
model, optimizer = accelerator.prepare(*with_optimizer(copy.deepcopy(initial)))
backward = accelerator.backward
"""

PP_BY_HAND = """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
def loss_of(logits, labels):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
def by_hand():
    whole = copy.deepcopy(initial)
    parts = [*whole.blocks[:6]] if rank == 0 else [*whole.blocks[6:], whole.norm, whole.head]
    part, optimizer = with_optimizer(nn.Sequential(*([whole.embed] if rank == 0 else []), *parts))
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss_of)
    def run():
        losses = []
        schedule.step(tokens) if rank == 0 else schedule.step(target=tokens, losses=losses)
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        dist.broadcast(loss, 1)
    return run, optimizer
"""


PP_OURS = """
from accel import Accelerator, ParallelismConfig
from accel_state import PipelineParallelConfig
handler = PipelineParallelConfig(num_micro_batches=4, split_points=["blocks.6"])
accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(pp_size=2, pp_handler=handler))
model, own_optimizer = accelerator.prepare(*with_optimizer(copy.deepcopy(initial)))
def run():
    accelerator.forward_backward(model, tokens, lambda model, tokens: loss_of(model(tokens), tokens))
pair = [(run, own_optimizer), by_hand()]
"""

PP_STEP = """
def step(run, optimizer):
    begun = time.perf_counter()
    run()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - begun
"""


def variant(model: str, by_hand: str, measured: str, clock: str = CLOCK) -> str:
    """Return the source of a variant, which prints a ratio to the step by hand."""
    return TWO_RANKS + model + by_hand + measured + clock + FAREWELL


CASES = {
    "fsdp2_step": Case(
        "one step of twelve sharded blocks on two gloo processes, medians of 60",
        "x plain `fully_shard` in the same processes",
        {"ours": variant(MODEL, FSDP_SHARDED, FSDP_OURS)},
    ),
    "tp_step": Case(
        "one step of twelve blocks whose layers two gloo processes share, medians of 60",
        "x the value in brackets, by hand in the same processes",
        {
            "ours (parallelize_module, fully_shard)": variant(MODEL, TP_SHARED + TP_BESIDE_SHARDED, TP_OURS),
            "ours (parallelize_module)": variant(MODEL, TP_SHARED + TP_BESIDE, TP_OURS),
            "ours, 2,048 tokens (parallelize_module)": variant(LONG, TP_SHARED + TP_BESIDE, TP_OURS),
            "ours, wide (parallelize_module)": variant(WIDE, TP_SHARED + TP_BESIDE, TP_OURS),
        },
    ),
    "pp_step": Case(
        "one step of four micro-batches through two stages of six blocks on two gloo processes, medians of 60",
        "x plain `Schedule1F1B` in the same processes",
        {
            "ours": variant(MODEL, PP_BY_HAND, PP_OURS, PP_STEP + TURNS),
            "ours, wide": variant(WIDE, PP_BY_HAND, PP_OURS, PP_STEP + TURNS),
        },
    ),
}
