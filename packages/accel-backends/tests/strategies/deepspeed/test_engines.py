from types import SimpleNamespace

import pytest
import torch
from torch import nn

from accel_backends.strategies.deepspeed.engines import place_for_evaluation


class Sums(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, batch, *, index):
        self.seen = batch["rows"].dtype, index.dtype
        return batch["rows"] + self.weight


@pytest.mark.parametrize("auto_cast", [True, False])
def test_inputs_of_a_model_that_is_not_trained_are_cast_in_fp16_where_the_config_asks(auto_cast):
    config = {"fp16": {"enabled": True, "auto_cast": auto_cast}}
    model = place_for_evaluation(Sums(), config, context=SimpleNamespace(device=torch.device("cpu")))
    outputs = model({"rows": torch.ones(3, 2)}, index=torch.arange(3))
    assert model.weight.dtype == torch.float16
    assert model.seen == (torch.float16 if auto_cast else torch.float32, torch.int64)
    assert outputs.dtype == torch.float32
