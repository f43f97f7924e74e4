"""The Trainer of transformers trains on accel as on Accelerate, and models that it shards as one process does."""

from __future__ import annotations

import pytest
from both_sides import found_by, largest_difference, on_both_sides

pytestmark = pytest.mark.engine("libraries")

SAMPLE = (
    "accumulated epochs", "dispatch_batches", "even_batches off", "num_steps", "use_configured_state",
    "streamed, accumulated, resumed", "batch_rebalance", "tokens averaged on each", "eval, with inputs and losses",
    "resumed, accumulated",
)  # fmt: skip
ON_ONE = (
    "group_by_length", "bf16, accumulated, clipped", "sgd, plateau", "eval, in batches", "save_only_model",
)  # fmt: skip
ON_TWO = ("fsdp, shard_grad_op", "fsdp, resumed")
"""Sharded on accel; Accelerate trains these as DDP on a CPU, with the same numbers."""
ALONE = {
    "shared": ("tp auto", "cp"),
    "shared, accumulated": ("loaded by fsdp, accumulated",),
    "shared, adapters": ("loaded by fsdp, adapters",),
}
"""What one process runs, and what must be equal to it on two."""


@pytest.mark.parametrize("num_processes", [1, 2])
def test_options_of_the_trainer_give_the_numbers_of_accelerate(tmp_path, num_processes):
    names = SAMPLE + (ON_ONE if num_processes == 1 else ON_TWO)
    ours, theirs = on_both_sides("trainer", tmp_path, *names, num_processes=num_processes, timeout_s=3000)
    for name in names:
        difference, place = largest_difference(ours[name], theirs[name])
        # Sharded, ranks add in another order; a number for a weight is a sum in which much cancels out.
        assert difference <= (0 if num_processes == 1 else 1e-3), (name, place)


def test_the_trainer_trains_sharded_models_as_one_process(tmp_path):
    alone = found_by("trainer", tmp_path / "alone", *ALONE)
    names = [name for names in ALONE.values() for name in names]
    together = found_by("trainer", tmp_path / "two", *names, num_processes=2, timeout_s=3000)
    for expected, names in ALONE.items():
        for name in names:
            for ours, theirs in zip(together[name]["history"], alone[expected]["history"], strict=True):
                assert ours == pytest.approx(theirs, rel=1e-5), name
            assert together[name]["weights"] == pytest.approx(alone[expected]["weights"], rel=1e-5), name
