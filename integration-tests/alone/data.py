"""A loop that resumes in the middle of an epoch, each sample once: accel-data and DDP of PyTorch.

torchrun --nproc_per_node 2 data.py FOLDER stop
torchrun --nproc_per_node 3 data.py FOLDER
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accel_data import gather_for_metrics, prepare_data_loader

dist.init_process_group("gloo")
state_file = Path(sys.argv[1]) / "state.json"
stops = "stop" in sys.argv
data = TensorDataset(torch.arange(101.0))
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
ranks_batch = 12 // dist.get_world_size()  # 12 samples in a step, on 2 ranks and on 3
loader = prepare_data_loader(
    DataLoader(data, batch_size=ranks_batch, shuffle=True, num_workers=1),
    use_seedable_sampler=True,
    data_seed=7,
)
seen = []
if state_file.exists():
    saved = json.loads(state_file.read_text())
    seen = saved["seen"]
    loader.load_state_dict(saved["loader"])

for step, (rows,) in enumerate(loader):
    loss = model(rows.unsqueeze(1)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    seen += gather_for_metrics(rows).tolist()
    if stops and step == 3:
        if dist.get_rank() == 0:
            state_file.write_text(json.dumps({"seen": seen, "loader": loader.state_dict()}))
        break
else:
    assert sorted(seen) == list(range(101)), seen
    assert seen != sorted(seen)
if dist.get_rank() == 0:
    print(f"{len(seen)} samples seen on {os.environ['WORLD_SIZE']} ranks")
dist.barrier()
dist.destroy_process_group()
