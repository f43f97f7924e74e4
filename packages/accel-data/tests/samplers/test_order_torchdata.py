from __future__ import annotations

import pytest
import torch

from accel_data import BatchSamplerShard

samplers = pytest.importorskip("torchdata.stateful_dataloader.sampler")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_samples": 7},
        {"num_samples": 95},
        {"replacement": True},
        {"replacement": True, "num_samples": 7},
    ],
)
def test_the_order_is_drawn_at_once_and_is_the_one_that_iterating_gives(settings):
    def batches():
        generator = torch.Generator().manual_seed(3)
        return samplers.BatchSampler(
            samplers.RandomSampler(range(41), generator=generator, **settings), 4, False
        )

    shard = BatchSamplerShard(batches(), even_batches=False)
    assert shard.plan() is not None
    assert list(shard) == list(batches())
