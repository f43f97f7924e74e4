"""Training that is killed and resumed on another number of ranks: accel-checkpoint and DDP of PyTorch.

torchrun --nproc_per_node 2 checkpoint.py FOLDER --die_at 25
torchrun --nproc_per_node 3 checkpoint.py FOLDER
"""

import argparse
import os
import signal

import torch
import torch.distributed as dist
from torch import nn

from accel_checkpoint import CheckpointFolder

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--die_at", type=int)
arguments = parser.parse_args()

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Linear(4, 1, dtype=torch.float64)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
checkpoints = CheckpointFolder(arguments.folder, keep=2)
newest = checkpoints.newest()
first = 0
if newest is not None:
    newest.verify()
    model.load_state_dict(newest.read("model.safetensors"))
    optimizer.load_state_dict(newest.read("optimizer.bin"))
    first = newest.step
ddp = nn.parallel.DistributedDataParallel(model)
for step in range(first, 40):
    batch = torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    rows = batch.chunk(size)[rank]  # 12 rows in a step on any number of ranks
    (ddp(rows) - rows.sum(dim=1, keepdim=True)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step + 1 == arguments.die_at:
        os.kill(os.getpid(), signal.SIGKILL)
    if (step + 1) % 10 == 0:
        with checkpoints.save(step + 1) as stage:
            stage.write("model.safetensors", model.state_dict())
            stage.write("optimizer.bin", optimizer.state_dict())
            stage.write(f"rank_{rank}.json", {"rank": rank, "of": size}, rank=None)
if rank == 0:
    weights = [value for parameter in model.parameters() for value in parameter.flatten().tolist()]
    print(f"from step {first} on {size} ranks:", " ".join(f"{value:.10f}" for value in weights))
dist.destroy_process_group()
