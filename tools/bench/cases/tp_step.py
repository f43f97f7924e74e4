"""A step of twelve blocks whose layers two gloo processes share: what the strategy adds to `parallelize_module`.

As in `fsdp2_step`, each variant is divided by a copy that is trained by hand in the same processes, in turn.
The peer refuses `tp_size` on CPUs.
"""

from tools.bench.case import Case
from tools.bench.loops import FAREWELL, TWO_RANKS
from tools.bench.steps_beside import CLOCK, MODEL, WIDE

SHARED = """
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
def shared():
    mesh, model = dist.device_mesh.init_device_mesh("cpu", (2,)), copy.deepcopy(initial)
    plan = {"embed": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel(output_layouts=Replicate())}
    for number in range(12):
        plan[f"blocks.{number}.up"], plan[f"blocks.{number}.down"] = ColwiseParallel(), RowwiseParallel()
    parallelize_module(model, mesh, plan)
    return with_optimizer(model)
def beside():
    return (*shared(), torch.Tensor.backward)
"""

RAW = """
dist.init_process_group("gloo")
model, optimizer = shared()
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
    unit="x plain `parallelize_module` in the same processes",
    variants={
        "raw parallelize_module": TWO_RANKS + MODEL + SHARED + RAW + CLOCK + FAREWELL,
        "ours": TWO_RANKS + MODEL + SHARED + OURS + CLOCK + FAREWELL,
        "ours, wide": TWO_RANKS + WIDE + SHARED + OURS + CLOCK + FAREWELL,
    },
    baseline="raw parallelize_module",
)
