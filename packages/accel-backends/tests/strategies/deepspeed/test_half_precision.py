import pytest
import torch
from torch import nn

from accel_backends.strategies.deepspeed.half_precision import convert_outputs


class Adds(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))

    def forward(self, rows, *, index):
        self.seen = rows.dtype, index.dtype
        return {"sum": rows + self.weight, "low": self.weight, "index": index}


@pytest.mark.parametrize("casts_inputs", [True, False])
def test_outputs_are_cast_to_fp32_and_inputs_where_the_config_asks(casts_inputs):
    model = Adds()
    for _ in range(2):  # again, as when a model gets another engine
        convert_outputs(model, torch.bfloat16, device_type="cpu", casts_inputs=casts_inputs)
    outputs = model(torch.ones(3, 2), index=torch.arange(3))
    assert model.seen == (torch.bfloat16 if casts_inputs else torch.float32, torch.int64)
    assert outputs["low"].dtype == outputs["sum"].dtype == torch.float32
    assert outputs["index"].dtype == torch.int64
    assert len(model._forward_pre_hooks) == casts_inputs
