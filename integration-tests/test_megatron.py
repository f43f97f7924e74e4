"""Megatron-LM must divide a model as its layout says, and train it as plain PyTorch does in one process."""

from __future__ import annotations

import megatron_rows
import pytest

from accel_state.enums import DistributedType

pytestmark = pytest.mark.engine("megatron")


@pytest.mark.parametrize("settings", [{"tp_degree": 2, "pp_degree": 2}, {"tp_degree": 2}, {"pp_degree": 2}])
def test_the_groups_of_megatron_are_those_of_the_layout(world, settings):
    for found, kind in world(4).run(megatron_rows.groups, settings):
        assert found == [True, True, True]
        assert kind == DistributedType.MEGATRON_LM


@pytest.mark.parametrize(
    ("settings", "num_micro_batches"),
    [
        ({}, 1),
        ({"tp_degree": 2}, 2),
        ({"pp_degree": 2}, 4),
        ({"use_distributed_optimizer": True}, 2),
        ({"pp_degree": 2, "num_layers_per_virtual_pipeline_stage": 1}, 4),
        ({"calculate_per_token_loss": True}, 2),
        ({"recompute_activations": True}, 2),
    ],
)
def test_two_ranks_train_as_one_process_of_plain_pytorch(world, settings, num_micro_batches):
    settings = {**settings, "num_micro_batches": num_micro_batches}
    expected = megatron_rows.plain()
    for losses, norm, num_rows in world(2).run(megatron_rows.trained, settings):
        assert losses == pytest.approx(expected, abs=2e-4)
        assert norm > 0
        assert num_rows == megatron_rows.NUM_ROWS
