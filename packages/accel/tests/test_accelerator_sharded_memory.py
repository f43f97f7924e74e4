"""What a step of a sharded model holds, next to what `accel plan` reports of it."""

from collections import Counter
from functools import partial
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import ProfilerActivity
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from accel import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig
from accel.planning.step import Step, measured, planned_step, train_once
from accel_backends import resolve_plan
from accel_state.mesh_layout import MeshLayout
from accel_state.runtime import reset_runtime


class Wide(nn.Module):
    """A model of 28 MB, of which two blocks make most."""

    parallel_plan: ClassVar = {"units": ["embed", "blocks.*"], "tail": ["norm", "head"]}

    def __init__(self, num_blocks=3, hidden=2048):
        super().__init__()
        self.embed = nn.Embedding(1000, 512)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(512, hidden), nn.ReLU(), nn.Linear(hidden, 512))
            for _ in range(num_blocks)
        )
        self.norm = nn.LayerNorm(512)
        self.head = nn.Linear(512, 1000, bias=False)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(self.norm(hidden))


STEP, LAYOUT = Step(batch_size=4, sequence_length=64), MeshLayout(dp_shard=2)


def measured_step():
    """Return the bytes on this rank in a step, by what they are for, and its collectives."""
    model = Wide()
    accelerator = Accelerator(cpu=True, **STEP.settings(LAYOUT, resolve_plan(model)))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), fused=True))
    tokens = torch.zeros(4, 64, dtype=torch.long)
    return measured(partial(train_once, accelerator, model, optimizer, tokens, LAYOUT), model, optimizer)


def bytes_of(tensors):
    locals_ = [one.to_local() if isinstance(one, DTensor) else one for one in tensors]
    return sum({one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in locals_}.values())


def test_a_step_holds_and_sends_what_the_plan_reports(world):
    model = Wide()
    [planned] = planned_step(model, resolve_plan(model), LAYOUT, STEP)
    sent = Counter()
    for one, count in planned.collectives.items():
        sent[one.kind, (0, 1), one.num_bytes] += count
    for memory, counted in world(2).run(measured_step):
        assert counted == sent
        assert sum(memory.values()) == pytest.approx(planned.total, rel=0.02)
        for part in ("parameters", "optimizer states (AdamW)", "activations"):
            assert memory[part] == pytest.approx(planned.memory[part], rel=0.05)


DEEP = {"num_blocks": 12, "hidden": 512}  # 29 MB, in small parts
BLOCK, END = 4 * (2 * 512 * 512 + 2 * 512), 4 * 1000 * 512
STAGES = [6 * BLOCK + END, 6 * BLOCK + END + 2 * 4 * 512]


def save_deep(folder):
    Accelerator(cpu=True).save_model(Wide(**DEEP), folder)


class LiveBytes(TorchDispatchMode):
    """Counts the memory of tensors made in the block, as long as they are referenced: also threads of collectives."""

    def __init__(self):
        super().__init__()
        self.most = 0
        self._made = {}

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(result):
            if storage._cdata not in given and storage._cdata not in self._made:
                self._made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._made = {key: pair for key, pair in self._made.items() if not pair[0].expired()}
        self.most = max(self.most, sum(size for _, size in self._made.values()))
        return result


def _storages(data):
    """Return the memory of tensors on the CPU; of those that are cut, of the local parts."""
    tensors = [getattr(one, "_local_tensor", one) for one in tree_leaves(data)]
    return [
        one.untyped_storage() for one in tensors if type(one) is torch.Tensor and one.device.type == "cpu"
    ]


def memory_of_stages(folder, sizes):
    """Return the bytes of the parameters that this rank keeps, and what it allocated to prepare them.

    That is the sum, and the most at a time next to what there was before.

    The model is on the meta device, with a folder on all ranks, else on all but the first.
    """
    reset_runtime(keep_process_group=True)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, load_weights_from=folder)
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(**sizes), fsdp_plugin=plugin)
    has_values = folder is None and accelerator.is_main_process
    with torch.device("cpu" if has_values else "meta"):
        model = Wide(**DEEP)
    live = LiveBytes()
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen, live:
        model = accelerator.prepare(model)
    accelerator.strategy.model_tensors(model)  # nothing stays gathered
    events = [one for one in seen.profiler.kineto_results.events() if one.name() == "[memory]"]
    return bytes_of(model.parameters()), sum(max(one.nbytes(), 0) for one in events), live.most


@pytest.mark.parametrize(
    ("num", "sizes", "has_files"),
    [
        (2, {"pp_size": 2}, False),
        (2, {"pp_size": 2}, True),
        (4, {"pp_size": 2, "dp_shard_size": 2}, True),
        (4, {"pp_size": 2, "dp_shard_size": 2}, False),
    ],
)
def test_each_rank_keeps_its_stage_of_a_model_on_the_meta_device_and_reads_no_more(
    world, tmp_path, num, sizes, has_files
):
    folder = str(tmp_path / "weights") if has_files else None
    if folder is not None:
        world(1).run(save_deep, folder)
    num_shards = num // 2
    for rank, (kept, allocated, peak) in enumerate(world(num).run(memory_of_stages, folder, sizes)):
        # What stands for a parameter of the other stage has one value.
        assert kept == pytest.approx(STAGES[rank // num_shards] / num_shards, abs=1000)
        if has_files:  # else it receives each tensor of the other stage, too, and frees it
            gathered = 0 if num_shards == 1 else 2 * END  # the root of the stage, from a copy of its shards
            assert kept <= allocated < kept + gathered + BLOCK // 4
            assert peak <= 1.1 * kept or num_shards > 1
        # Rank 0 has the model, and the others receive one unit at a time, or one tensor where it is not cut.
        assert kept <= peak < kept + max(BLOCK, END) + BLOCK // 4 or rank == 0
