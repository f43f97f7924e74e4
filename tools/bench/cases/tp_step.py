"""A step of twelve blocks with tensor parallelism over two gloo processes: the overhead over torch's functions.

As in `fsdp2_step`, each variant is divided by a copy that runs a hand-written loop in the same processes, in turn: by
`parallelize_module` and `fully_shard` over a mesh of one rank by two, as the strategy does it, or only the first.
Accelerate rejects `tp_size` on CPUs.
"""

from tools.bench.case import Case
from tools.bench.loops import FAREWELL, TWO_RANKS
from tools.bench.steps_beside import CLOCK, LONG, MODEL, WIDE

SHARED = """
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

BESIDE = """
def beside():
    return (*shared(and_sharded=False), torch.Tensor.backward)
"""

BESIDE_SHARDED = BESIDE.replace("False", "True")

RAW = """
dist.init_process_group("gloo")
model, optimizer = shared(and_sharded=True)
backward = torch.Tensor.backward
"""

OURS = """
from accel import Accelerator, ParallelismConfig
Model.parallel_plan = {"units": ["blocks.*"], "tail": ["norm", "head"], "tensor": {
    "embed": "embedding_rowwise", "blocks.*.up": "colwise", "blocks.*.down": "rowwise", "head": "colwise_gather_output",
}}
accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(tp_size=2))
model, optimizer = accelerator.prepare(*with_optimizer(copy.deepcopy(initial)))
backward = accelerator.backward
"""

case = Case(
    title="one step of twelve blocks whose layers two gloo processes share, medians of 60",
    unit="x the value in brackets, by hand in the same processes",
    variants={
        "raw (parallelize_module, fully_shard)": (
            TWO_RANKS + MODEL + SHARED + BESIDE_SHARDED + RAW + CLOCK + FAREWELL
        ),
        "ours (parallelize_module, fully_shard)": (
            TWO_RANKS + MODEL + SHARED + BESIDE_SHARDED + OURS + CLOCK + FAREWELL
        ),
        "ours (parallelize_module)": TWO_RANKS + MODEL + SHARED + BESIDE + OURS + CLOCK + FAREWELL,
        "ours, 2,048 tokens (parallelize_module)": (
            TWO_RANKS + LONG + SHARED + BESIDE + OURS + CLOCK + FAREWELL
        ),
        "ours, wide (parallelize_module)": TWO_RANKS + WIDE + SHARED + BESIDE + OURS + CLOCK + FAREWELL,
    },
    baseline="raw (parallelize_module, fully_shard)",
)
