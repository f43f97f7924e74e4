"""A step of four blocks with attention, whose sequences two gloo processes share: the overhead over torch's functions.

As in `fsdp2_step`, each variant is divided by a copy that runs a hand-written loop in the same processes, in turn: each
rank has a piece of the head and one of the tail, gathers keys and values, and computes two pieces of causal attention.
`alltoall` gathers keys and values again for the backward pass. Accelerate shares no sequences on CPUs.
"""

from tools.bench.case import Case
from tools.bench.loops import FAREWELL, TWO_RANKS
from tools.bench.steps_beside import TURNS

MODEL = """
import copy, time, torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as attention
torch.set_num_threads(1)
torch.manual_seed(0)
LENGTH = 2048
class Attention(nn.Module):
    by_hand = None
    def __init__(self):
        super().__init__()
        self.packed, self.out = nn.Linear(128, 384), nn.Linear(128, 128)
    def forward(self, rows):
        heads = [part.unflatten(-1, (4, 32)).transpose(1, 2) for part in self.packed(rows).chunk(3, -1)]
        mixed = self.by_hand(*heads) if self.by_hand else attention(*heads, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(128), nn.LayerNorm(128)
        self.attention, self.up, self.down = Attention(), nn.Linear(128, 512), nn.Linear(512, 128)
    def forward(self, rows):
        rows = rows + self.attention(self.first(rows))
        return rows + self.down(torch.relu(self.up(self.second(rows))))
class Model(nn.Module):
    parallel_plan = {"units": ["blocks.*"], "tail": ["norm", "head"], "attention": ["blocks.*.attention"]}
    def __init__(self):
        super().__init__()
        self.embed, self.places = nn.Embedding(500, 128), nn.Embedding(LENGTH, 128)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.norm, self.head = nn.LayerNorm(128), nn.Linear(128, 500)
    def forward(self, tokens, position_ids):
        rows = self.embed(tokens) + self.places(position_ids)
        for block in self.blocks:
            rows = block(rows)
        return self.head(self.norm(rows))
initial = Model()
tokens = torch.randint(500, (1, LENGTH))
positions = torch.arange(LENGTH)[None]
def with_optimizer(model):
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)
def loss_of(model, tokens, positions):
    return nn.functional.cross_entropy(model(tokens, positions).flatten(0, 1), tokens.flatten())
"""

BY_HAND = """
from torch.distributed import _functional_collectives as collectives
from torch.distributed.fsdp import fully_shard
from torch.nn.attention.bias import causal_lower_right
all_gather = getattr(collectives, "all_gather_single_autograd", None) or collectives.all_gather_tensor_autograd
step, pieces = LENGTH // 4, (rank, 3 - rank)
def attend(query, key, value):
    first, second = all_gather(torch.cat([key, value], -1), 0, dist.group.WORLD).chunk(2)
    parts = [*first.chunk(2, -2), *second.chunk(2, -2)]
    keys, values = torch.cat([parts[place] for place in (0, 2, 3, 1)], -2).chunk(2, -1)
    return torch.cat([
        attention(one, keys[..., :(piece + 1) * step, :], values[..., :(piece + 1) * step, :],
                  attn_mask=causal_lower_right(step, (piece + 1) * step))
        for piece, one in zip(pieces, query.chunk(2, -2))
    ], -2)
def by_hand():
    model = copy.deepcopy(initial)
    for block in model.blocks:
        block.attention.by_hand = attend
        fully_shard(block)
    fully_shard([model.norm, model.head], reshard_after_forward=False)
    fully_shard(model)
    model, optimizer = with_optimizer(model)
    def run():
        mine = [torch.cat([one.chunk(4, 1)[piece] for piece in pieces], 1) for one in (tokens, positions)]
        loss_of(model, *mine).backward()
    return run, optimizer
"""

RAW = """
dist.init_process_group("gloo")
pair = [by_hand(), by_hand()]
"""

OURS = """
from accel import Accelerator, ParallelismConfig
from accel_state import TorchContextParallelConfig
handler = TorchContextParallelConfig(cp_comm_strategy=STRATEGY)
accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(cp_size=2, cp_handler=handler))
model, own_optimizer = accelerator.prepare(*with_optimizer(copy.deepcopy(initial)))
def run():
    with accelerator.maybe_context_parallel([tokens, positions], [1, 1]):
        accelerator.backward(loss_of(model, tokens, positions))
pair = [(run, own_optimizer), by_hand()]
"""

CLOCK = """
def step_of(run, optimizer):
    begun = time.perf_counter()
    run()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - begun
""" + TURNS.replace("step(*pair", "step_of(*pair")

case = Case(
    title="one step of four blocks, of whose 2,048 tokens two gloo processes have half each, medians of 60",
    unit="x the same by hand in the same processes",
    variants={
        "raw (gathered keys, fully_shard)": TWO_RANKS + MODEL + BY_HAND + RAW + CLOCK + FAREWELL,
        **{
            f"ours, {strategy}": TWO_RANKS
            + MODEL
            + BY_HAND
            + OURS.replace("STRATEGY", f'"{strategy}"')
            + CLOCK
            + FAREWELL
            for strategy in ("allgather", "alltoall")
        },
    },
    baseline="raw (gathered keys, fully_shard)",
)
