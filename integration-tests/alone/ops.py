"""Metrics of all ranks, and a batch size that fits on every one: accel-ops with a process group of one's own.

torchrun --nproc_per_node 3 ops.py
"""

import torch
import torch.distributed as dist

from accel_ops import (
    broadcast_object_list,
    find_executable_batch_size,
    gather,
    gather_object,
    pad_across_processes,
    reduce,
    set_seed,
)

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
set_seed(0)

predicted = {"tokens": torch.full((2, rank + 1), rank), "lengths": torch.tensor([rank + 1] * 2)}
everyone = gather(pad_across_processes(predicted, dim=1, pad_index=-1))
assert everyone["tokens"].shape == (2 * size, size)
assert everyone["lengths"].tolist() == [length for length in range(1, size + 1) for _ in range(2)]
assert (everyone["tokens"] == -1).sum() == 2 * sum(range(size))

totals = reduce({"loss": torch.tensor(float(rank)), "rows": torch.tensor(2)}, "sum")
assert totals["loss"] == sum(range(size))
assert totals["rows"] == 2 * size
assert reduce(torch.tensor(float(rank)), "mean") == (size - 1) / 2
assert gather_object([f"rank {rank}"]) == [f"rank {each}" for each in range(size)]
plan = [{"folder": "run-7"} if rank == 0 else None]
broadcast_object_list(plan)
assert plan == [{"folder": "run-7"}]


@find_executable_batch_size(starting_batch_size=64)
def train(batch_size):
    if rank == size - 1 and batch_size > 16:  # the last rank has less memory
        raise torch.OutOfMemoryError("out of memory")
    return batch_size


fits = train()
assert fits == 16, fits
if rank == 0:
    print(f"{size} ranks, mean loss {totals['loss'] / size:.2f}, batches of {fits}")
dist.destroy_process_group()
