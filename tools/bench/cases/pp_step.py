"""A step of twelve blocks in two stages: what the pipeline adds to `torch.distributed.pipelining`, with 1F1B.

As in `fsdp2_step`, each variant is divided by a copy that runs a hand-written loop in the same processes, in turn.
By hand, each rank builds its stage, and the last one sends the loss; ours gets the full model and splits it.
Accelerate trains no pipelines.
"""

from tools.bench.case import Case
from tools.bench.loops import FAREWELL, TWO_RANKS
from tools.bench.steps_beside import MODEL, TURNS, WIDE

BY_HAND = """
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

RAW = """
dist.init_process_group("gloo")
pair = [by_hand(), by_hand()]
"""

OURS = """
from accel import Accelerator, ParallelismConfig
from accel_state import PipelineParallelConfig
handler = PipelineParallelConfig(num_micro_batches=4, split_points=["blocks.6"])
accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(pp_size=2, pp_handler=handler))
model, own_optimizer = accelerator.prepare(*with_optimizer(copy.deepcopy(initial)))
def run():
    accelerator.forward_backward(model, tokens, lambda model, tokens: loss_of(model(tokens), tokens))
pair = [(run, own_optimizer), by_hand()]
"""

STEP = """
def step(run, optimizer):
    begun = time.perf_counter()
    run()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - begun
"""

case = Case(
    title="one step of four micro-batches through two stages of six blocks on two gloo processes, medians of 60",
    unit="x plain `Schedule1F1B` in the same processes",
    variants={
        "raw Schedule1F1B": TWO_RANKS + MODEL + BY_HAND + RAW + STEP + TURNS + FAREWELL,
        "ours": TWO_RANKS + MODEL + BY_HAND + OURS + STEP + TURNS + FAREWELL,
        "ours, wide": TWO_RANKS + WIDE + BY_HAND + OURS + STEP + TURNS + FAREWELL,
    },
    baseline="raw Schedule1F1B",
)
