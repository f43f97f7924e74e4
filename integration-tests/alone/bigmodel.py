"""A model that is larger than the memory it may take: a skeleton, its weights on disk, and a forward pass.

python bigmodel.py FOLDER
"""

import sys
from pathlib import Path

import torch
from torch import nn

from accel_bigmodel import init_empty_weights, load_checkpoint_and_dispatch, save_model

folder = Path(sys.argv[1])


def build():
    return nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)])


torch.manual_seed(0)
resident = build()
save_model(resident, folder / "weights", max_shard_size="600KB")
torch.save(resident.state_dict(), folder / "weights.bin")
with init_empty_weights():
    skeleton, other = build(), build()
assert all(parameter.is_meta for parameter in skeleton.parameters())

budget = {"cpu": "1MB"}
load_checkpoint_and_dispatch(skeleton, folder / "weights", device_map="auto", max_memory=budget)
places = set(skeleton.hf_device_map.values())
assert places == {"cpu", "disk"}, places
# A file of torch.save cannot be read in parts, so what stays on disk is written once more.
load_checkpoint_and_dispatch(
    other, folder / "weights.bin", device_map="auto", max_memory=budget, offload_folder=folder / "offloaded"
)
rows = torch.randn(4, 256)
with torch.no_grad():
    torch.testing.assert_close(skeleton(rows), resident(rows))
    torch.testing.assert_close(other(rows), resident(rows))
print(f"{sum(place == 'disk' for place in skeleton.hf_device_map.values())} of 8 blocks on disk")
