"""The script of docs/scale/recipe_64_gpus.md on rank 0 of 64 ranks; torch's ``fake`` group represents the others.

``python recipe_64_gpus.py SCRIPT [ARGUMENTS]``, with the variables that a launch gives rank 0.
"""

from __future__ import annotations

import os
import runpy
import sys

import torch.distributed as dist
from simulated_ranks import AlikeReports
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: F401  # registers the backend

from accel.utils import extract_model_from_parallel
from accel_checkpoint.saving import saver
from accel.planning.collectives import counted_collectives


def main(script: str, *arguments: str) -> None:
    num_ranks = int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    dist.init_process_group("fake", store=store, rank=0, world_size=num_ranks)
    saver.agreement_of = AlikeReports
    sys.argv = [script, *arguments]
    with counted_collectives() as counted:
        names = runpy.run_path(script, run_name="__main__")
    weight = extract_model_from_parallel(names["model"]).model.layers[0].self_attn.q_proj.weight
    print("mesh", dict(zip(weight.device_mesh.mesh_dim_names, weight.device_mesh.mesh.shape, strict=True)))
    print("weight", tuple(weight.shape), tuple(weight.to_local().shape))
    print("groups", sorted({len(ranks) for _, ranks, _ in counted}))


if __name__ == "__main__":
    main(*sys.argv[1:])
