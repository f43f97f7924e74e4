import pytest
import torch

from accel_backends.strategies.megatron.optimizers import optimizer_settings
from accel_state.errors import ConfigError


def test_an_optimizer_is_read_by_its_settings():
    parameter = torch.nn.Parameter(torch.ones(1))
    found = optimizer_settings(torch.optim.AdamW([parameter], lr=0.1, weight_decay=0.2, betas=(0.5, 0.6)))
    assert found["lr"] == 0.1
    assert (found["weight_decay"], found["adam_beta1"], found["adam_beta2"]) == (0.2, 0.5, 0.6)
    with pytest.raises(ConfigError, match="different learning rates"):
        optimizer_settings(
            torch.optim.SGD(
                [{"params": [parameter], "lr": 1.0}, {"params": [torch.nn.Parameter(parameter)]}], lr=0.1
            )
        )
