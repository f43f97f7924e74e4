"""Runs of hundreds and thousands of ranks on one machine: torch's ``fake`` process group stands for all but rank 0.

Its collectives move nothing, so values are those of one rank, while every call is the one that a real run makes.
``python integration-tests/simulated_ranks.py`` compares the plan with runs of 512 and 4,096 ranks,
and prints the table of docs/guides/parallelism.md.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import sys
import time
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from accel import Accelerator, ParallelismConfig
from accel_backends import FullyShardedDataParallelPlugin, resolve_plan
from accel_backends.plans.communication import step_collectives
from accel_backends.plans.forward_sizes import forward_sizes
from accel_backends.plans.memory import plan_memory
from accel_backends.testing.collectives import counted_collectives
from accel_state.mesh_layout import MeshLayout

VOCABULARY, BATCH, SEQUENCE = 1000, 2, 16
LAYOUTS = {
    "fsdp": {},
    "fsdp, checkpointing, bf16": {"is_checkpointed": True, "mixed_precision": "bf16"},
    "hsdp": {"dp_replicate": 8},
    "fsdp × tp": {"tp": 8},
    "fsdp × tp, checkpointing": {"tp": 8, "is_checkpointed": True},
    "hsdp × tp, bf16": {"dp_replicate": 4, "tp": 8, "mixed_precision": "bf16"},
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


class Net(nn.Module):
    parallel_plan: ClassVar = {
        "units": ["embed", "blocks.*"],
        "tail": ["norm", "head"],
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

    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(4))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


def layout_of(name, num_ranks):
    sizes = {key: size for key, size in LAYOUTS[name].items() if key in ("dp_replicate", "tp")}
    rest = num_ranks // (sizes.get("dp_replicate", 1) * sizes.get("tp", 1))
    return MeshLayout(dp_shard=rest, **sizes)


def planned_collectives(name, num_ranks):
    """Return what `accel plan` says of the step: rows of kind, ranks of the group and bytes, and how often."""
    layout = layout_of(name, num_ranks)
    model = Net()
    plan = resolve_plan(model)
    planned = plan_memory(
        model, plan, num_shards=layout.dp_shard, num_replicas=layout.dp_replicate, num_sharing=layout.tp
    )
    dtype = torch.bfloat16 if "mixed_precision" in LAYOUTS[name] else None
    [sizes] = forward_sizes(
        model, plan, batch_size=BATCH, sequence_length=SEQUENCE, num_sharing=layout.tp, dtype=dtype
    )
    found = step_collectives(
        planned,
        layout,
        sizes=sizes,
        is_checkpointed=LAYOUTS[name].get("is_checkpointed", False),
        element_bytes=None if dtype is None else dtype.itemsize,
    )
    return sorted(
        [one.kind, list(layout.group_of(0, *one.axes)), one.num_bytes, count] for one, count in found.items()
    )


def simulate(layout):
    """Make this process rank 0 of a run whose other ranks are not there."""
    num_ranks = str(layout.world_size)
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": num_ranks, "LOCAL_WORLD_SIZE": "8"}
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.world_size)


def prepared(name, layout):
    options = LAYOUTS[name]
    accelerator = Accelerator(
        cpu=True,
        mixed_precision=options.get("mixed_precision"),
        parallelism_config=ParallelismConfig(**{f"{axis}_size": size for axis, size in layout.sizes.items()}),
        fsdp_plugin=FullyShardedDataParallelPlugin(
            fsdp_version=2, activation_checkpointing=options.get("is_checkpointed", False)
        ),
    )
    model = Net()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    return accelerator, model, optimizer


def step(accelerator, model, optimizer):
    tokens = torch.zeros(BATCH, SEQUENCE, dtype=torch.long)
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()


def counted_step(name, num_ranks):
    """Return the collectives of one step, as `planned_collectives` does; in a process of its own."""
    layout = layout_of(name, num_ranks)
    simulate(layout)
    run = prepared(name, layout)
    with counted_collectives() as counted:
        step(*run)
    return sorted([kind, list(ranks), size, count] for (kind, ranks, size), count in counted.items())


def growth(num_ranks):
    """Return what one rank does for a run of that many: groups, and collectives and seconds of each call."""
    layout = MeshLayout(dp_replicate=2, dp_shard=num_ranks // 4, tp=2)
    simulate(layout)
    made = 0
    make = dist.distributed_c10d._new_process_group_helper

    def counted_make(*arguments, **options):
        nonlocal made
        made += 1
        return make(*arguments, **options)

    dist.distributed_c10d._new_process_group_helper = counted_make
    times = [time.perf_counter()]
    with counted_collectives() as counted:
        run = prepared("fsdp × tp", layout)
    in_prepare = counted.total()
    times.append(time.perf_counter())
    with counted_collectives() as counted:
        step(*run)
    times.append(time.perf_counter())
    return {
        "groups": made,
        "collectives": [in_prepare, counted.total()],
        "seconds": [later - earlier for earlier, later in itertools.pairwise(times)],
    }


def in_own_processes(function, calls):
    """Return the result of each call, which has a process of its own: torch keeps what it knows of groups."""
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        return pool.starmap(function, calls, chunksize=1)


def table(collectives):
    """Return the table of the guide, from collectives by layout and number of ranks."""
    kinds = ("all_gather", "reduce_scatter", "all_reduce")
    lines = ["| layout | ranks | all-gathers | reduce-scatters | all-reduces |", "|-|-|-|-|-|"]
    for (name, num_ranks), rows in collectives.items():
        cells = []
        for kind in kinds:
            found = [(size, count) for this, _, size, count in rows if this == kind]
            num_bytes = sum(size * count for size, count in found)
            cells.append(f"{sum(count for _, count in found)}: {num_bytes / 1e6:.2f} MB" if found else "none")
        sizes = [f"`{axis}` {size}" for axis, size in layout_of(name, num_ranks).sizes.items() if size > 1]
        extra = name.partition(", ")[2]
        lines.append(
            f"| {' × '.join(sizes)}{', ' + extra if extra else ''} | {num_ranks} | {' | '.join(cells)} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments):
    torch.set_num_threads(1)
    calls = [(name, num_ranks) for num_ranks in map(int, arguments or (512, 4096)) for name in LAYOUTS]
    counted = dict(zip(calls, in_own_processes(counted_step, calls), strict=True))
    if arguments:
        print(json.dumps(list(counted.values())))
        return
    for call, found in counted.items():
        print(*call, "as planned" if found == planned_collectives(*call) else "NOT as planned")
    print(table(counted))
    for num_ranks, told in zip(
        (8, 512, 4096), in_own_processes(growth, [(8,), (512,), (4096,)]), strict=True
    ):
        print(num_ranks, told)


if __name__ == "__main__":
    main(sys.argv[1:])
