"""The Trainer of transformers prints the numbers on accel that it prints on Accelerate, whatever its options."""

from __future__ import annotations

import pytest
from both_sides import largest_difference, on_both_sides

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


@pytest.mark.parametrize("num_processes", [1, 2])
def test_options_of_the_trainer_give_the_numbers_of_accelerate(tmp_path, num_processes):
    names = SAMPLE + (ON_ONE if num_processes == 1 else ON_TWO)
    ours, theirs = on_both_sides(
        "trainer_options", tmp_path, *names, num_processes=num_processes, timeout_s=3000
    )
    for name in names:
        difference, place = largest_difference(ours[name], theirs[name])
        # Sharded, ranks add in another order; a number for a weight is a sum in which much cancels out.
        assert difference <= (0 if num_processes == 1 else 1e-3), (name, place)
