"""Runs of hundreds and thousands of ranks on one machine: torch's ``fake`` process group represents all but rank 0.

Its collectives move nothing, so values are those of one rank, while every call is the one that a real run makes.
``simulated_ranks.py step 512`` prints how often a rank takes part in each collective of a step;
``growth 16 512``, how often a rank communicates in each call.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from accel import Accelerator, ParallelismConfig
from accel.planning.collectives import counted_collectives
from accel.planning.step import Step, planned_step
from accel_backends import FullyShardedDataParallelPlugin, resolve_plan
from accel_checkpoint.ranks.agreement import Agreement
from accel_checkpoint.saving import saver
from accel_state import TorchContextParallelConfig
from accel_state.mesh_layout import AXES, MeshLayout

sys.path.append(str(Path(__file__).parents[1]))  # for `tools`, if this is run as a script

VOCABULARY, BATCH, SEQUENCE = 1000, 2, 16
LAYOUTS = {
    "fsdp, checkpointing, bf16": {"is_checkpointed": True, "mixed_precision": "bf16"},
    "fsdp × tp": {"tp": 8},
    "hsdp × tp, bf16": {"dp_replicate": 4, "tp": 8, "mixed_precision": "bf16"},
    "fsdp × cp, ring, checkpointing": {"cp": 8, "ring": True, "is_checkpointed": True},
    "fsdp × sp, checkpointing": {"sp": 4, "is_checkpointed": True},
    "experts × tp, checkpointing": {"ep": 8, "tp": 2, "is_checkpointed": True},
}


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.head_dim = 8
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, hidden):
        normed = self.norm(hidden)
        query, key, value = (
            layer(normed).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        return hidden + self.scale * self.down(torch.relu(self.up(hidden)))


class Experts(nn.Module):
    """Experts of which all get as many tokens, so that what arrives from ranks that are not there has a size."""

    def __init__(self, width):
        super().__init__()
        self.num_experts = 8
        self.weight = nn.Parameter(torch.randn(8, width, width) / width)

    def forward(self, hidden, chosen, weights):
        return torch.einsum("ti,tkio,tk->to", hidden, self.weight[chosen], weights)


class ExpertBlock(Block):
    def __init__(self, width):
        super().__init__(width)
        del self.up, self.down
        self.router, self.experts = nn.Linear(width, 8), Experts(width)

    def forward(self, hidden):
        tokens = hidden.flatten(0, 1)
        chosen = torch.arange(2 * len(tokens)).view(-1, 2) % 8
        weights = self.router(tokens).softmax(-1).gather(1, chosen)
        return hidden + self.scale * self.experts(tokens, chosen, weights).view_as(hidden)


class Net(nn.Module):
    parallel_plan: ClassVar = {
        "units": ["embed", "blocks.*"],
        "tail": ["norm", "head"],
        "attention": ["blocks.*"],
        "tensor": {
            "embed": "embedding_rowwise",
            "blocks.*.query": "colwise",
            "blocks.*.key": "colwise",
            "blocks.*.value": "colwise",
            "blocks.*.out": "rowwise",
            "blocks.*.up": "colwise",
            "blocks.*.down": "rowwise",
            "head": "colwise_gather_output",
        },
    }

    def __init__(self, width=64, block=Block):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(block(width) for _ in range(4))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


class Mixture(Net):
    parallel_plan: ClassVar = {
        "units": ["embed", "blocks.*"],
        "tail": ["norm", "head"],
        "experts": {"blocks.*.experts": "ep_dispatch_experts"},
        "tensor": {"embed": "embedding_rowwise", "head": "colwise_gather_output"},
    }

    def __init__(self):
        super().__init__(block=ExpertBlock)


def model_of(name):
    return Mixture() if "ep" in LAYOUTS[name] else Net()


def layout_of(name, num_ranks):
    sizes = {key: size for key, size in LAYOUTS[name].items() if key in (*AXES, "ep")}
    rest = num_ranks // math.prod(size for key, size in sizes.items() if key != "ep")
    return MeshLayout(dp_shard=rest, **sizes)


def planned_collectives(name, num_ranks):
    """Return what `accel plan` reports of the step: rows of kind, ranks of the group and bytes, and how often."""
    layout, options = layout_of(name, num_ranks), LAYOUTS[name]
    model = model_of(name)
    step = Step(
        batch_size=BATCH,
        sequence_length=SEQUENCE,
        is_checkpointed=options.get("is_checkpointed", False),
        mixed_precision=options.get("mixed_precision", "no"),
        cp_comm_strategy="alltoall" if options.get("ring") else "allgather",
    )
    [stage] = planned_step(model, resolve_plan(model), layout, step)
    return sorted(
        [one.kind, list(layout.group_of(0, *one.axes)), one.num_bytes, count]
        for one, count in stage.collectives.items()
    )


def simulate(layout):
    """Make this process rank 0 of a run whose other ranks are not there."""
    num_ranks = str(layout.world_size)
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": "8"}
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.world_size)


def prepared(name, layout, *, state_dict_type="SHARDED_STATE_DICT"):
    options = LAYOUTS[name]
    accelerator = Accelerator(
        cpu=True,
        mixed_precision=options.get("mixed_precision"),
        parallelism_config=ParallelismConfig(
            **{f"{axis}_size": size for axis, size in {**layout.sizes, "ep": layout.ep}.items()},
            sp_backend="torch",
            cp_handler=TorchContextParallelConfig(
                cp_comm_strategy="alltoall" if options.get("ring") else "allgather"
            )
            if layout.cp > 1
            else None,
        ),
        fsdp_plugin=FullyShardedDataParallelPlugin(
            fsdp_version=2,
            activation_checkpointing=options.get("is_checkpointed", False),
            state_dict_type=state_dict_type,
        ),
    )
    model = model_of(name)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    return accelerator, model, optimizer


def step(accelerator, model, optimizer):
    tokens = torch.zeros(BATCH, SEQUENCE, dtype=torch.long)
    with accelerator.maybe_context_parallel([tokens], [1], {tokens}):
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()


def counted_step(name, num_ranks):
    """Return the collectives of one step, as `planned_collectives` does; in a separate process."""
    layout = layout_of(name, num_ranks)
    simulate(layout)
    run = prepared(name, layout)
    with counted_collectives() as counted:
        step(*run)
    # What one rank sends another receives, which the plan does not count again.
    return sorted(
        [kind, list(ranks), size, count]
        for (kind, ranks, size), count in counted.items()
        if kind != "receive"
    )


class AlikeReports(Agreement):
    """Rounds of a save in which the ranks that are not there report what this one does."""

    def __init__(self, *, rank, world_size, gather):
        super().__init__(gather, rank=rank, world_size=world_size)
        self.topics = []
        AlikeReports.newest = self

    def agree(self, topic, report, merge, *, wait_s=None, is_begun=False):
        self.topics.append(topic.rpartition("/")[2])
        return merge([report] * self.world_size)


def growth(num_ranks, state_dict_type):
    """Return what one rank does for a run of that many: groups, collectives of each call, and rounds of the save."""
    layout = MeshLayout(dp_replicate=2, dp_shard=num_ranks // 4, tp=2)
    simulate(layout)
    made = 0
    make = dist.distributed_c10d._new_process_group_helper

    def counted_make(*arguments, **options):
        nonlocal made
        made += 1
        return make(*arguments, **options)

    dist.distributed_c10d._new_process_group_helper = counted_make
    with counted_collectives() as counted:
        run = prepared("fsdp × tp", layout, state_dict_type=state_dict_type)
    in_prepare = counted.total()
    with counted_collectives() as counted:
        step(*run)
    in_step = counted.total()
    saver.agreement_of = AlikeReports  # torch's store for a fake group cannot be shared
    with tempfile.TemporaryDirectory() as folder, counted_collectives() as counted:
        run[0].save_state(folder)
    return {
        "groups": made,
        "collectives": [in_prepare, in_step, counted.total()],
        "rounds of the save": AlikeReports.newest.topics,
    }


def in_own_processes(function, calls):
    """Return the result of each call, which has a separate process: torch keeps what it knows of groups."""
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        return pool.starmap(function, calls, chunksize=1)


def grown(sizes):
    """Return `growth` for each kind of checkpoint and number of ranks."""
    calls = [(num_ranks, kind) for kind in ("SHARDED_STATE_DICT", "FULL_STATE_DICT") for num_ranks in sizes]
    return list(zip(calls, in_own_processes(growth, calls), strict=True))


def main(what, *sizes):
    torch.set_num_threads(1)
    if what == "growth":
        print(json.dumps(grown([int(size) for size in sizes])))
    else:
        calls = [(name, int(size)) for size in sizes for name in LAYOUTS]
        print(json.dumps(in_own_processes(counted_step, calls)))


if __name__ == "__main__":
    main(*sys.argv[1:])
