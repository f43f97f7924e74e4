"""A script of plain PyTorch, which knows nothing of accel.

accel launch --cpu --num_processes 2 launch.py
"""

import sys

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    rows = torch.randn(12, 4).chunk(size)[rank]
    loss = (model(rows) - rows.sum(dim=1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
if rank == 0:
    ours = sorted(name for name in sys.modules if name.startswith("accel"))
    print(f"{size} ranks, arguments {sys.argv[1:]}, modules of accel: {ours}")
dist.destroy_process_group()
