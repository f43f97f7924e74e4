"""A step of four attention blocks over sequences that two gloo processes share, keys and values gathered.

As in `fsdp2_step`, each variant is divided by a copy that runs a hand-written loop in the same processes, in turn:
`fully_shard`, and torch's collectives with gradients, since its `context_parallel` has no attention for CPUs. Nor has
Accelerate, which calls that.
"""

from tools.bench.case import Case
from tools.bench.loops import FAREWELL, TWO_RANKS
from tools.bench.steps_beside import LANGUAGE, TURNS

BY_HAND = """
from contextlib import contextmanager
from torch.distributed._functional_collectives import all_gather_tensor_autograd
from torch.distributed.fsdp import fully_shard
half = slice(256 * rank, 256 * (rank + 1))
class SharedBlock(Block):
    def attend(self, query, key, value):
        key, value = (all_gather_tensor_autograd(part.contiguous(), 2, dist.group.WORLD) for part in (key, value))
        return nn.functional.scaled_dot_product_attention(query, key, value, seen)
seen = torch.ones(512, 512, dtype=torch.bool).tril()[half]
@contextmanager
def halved(buffers):
    for buffer in buffers:
        buffer.set_(buffer[:, half].contiguous())
    yield
def by_hand():
    mesh, model = dist.device_mesh.init_device_mesh("cpu", (2,)), copy.deepcopy(initial)
    for block in model.blocks:
        block.__class__ = SharedBlock
        fully_shard(block, mesh=mesh)
    fully_shard([model.norm, model.head], mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    return (*with_optimizer(model), torch.Tensor.backward, halved)
"""

RAW = """
dist.init_process_group("gloo")
pair = [by_hand(), by_hand()]
"""

OURS = """
from accel import Accelerator, ParallelismConfig
accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(cp_size=2))
Model.parallel_plan = {"units": ["blocks.*"], "tail": ["norm", "head"], "attention": ["blocks.*"]}
model, optimizer = accelerator.prepare(*with_optimizer(copy.deepcopy(initial)))
def cut(buffers):
    return accelerator.maybe_context_parallel(buffers, [1] * len(buffers), set(buffers))
pair = [(model, optimizer, accelerator.backward, cut), by_hand()]
"""

STEP = """
def step(model, optimizer, backward, cut):
    buffers = [tokens.clone(), positions.clone(), tokens.clone()]
    begun = time.perf_counter()
    with cut(buffers):
        inputs, places, labels = buffers
        backward(torch.nn.functional.cross_entropy(model(inputs, places).flatten(0, 1), labels.flatten()))
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - begun
"""

case = Case(
    title="one step of four attention blocks over 512 tokens that two gloo processes share, medians of 60",
    unit="x plain collectives in the same processes",
    variants={
        "raw collectives": TWO_RANKS + LANGUAGE + BY_HAND + RAW + STEP + TURNS + FAREWELL,
        "ours": TWO_RANKS + LANGUAGE + BY_HAND + OURS + STEP + TURNS + FAREWELL,
    },
    baseline="raw collectives",
)
