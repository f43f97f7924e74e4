import torch
from torch import nn

from accel_backends.strategies.deepspeed.half_precision import convert_inputs_and_outputs


class Adds(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))

    def forward(self, rows, *, index):
        assert rows.dtype == torch.bfloat16
        assert index.dtype == torch.int64
        return {"sum": rows + self.weight, "index": index}


def test_inputs_are_cast_to_the_width_of_the_parameters_and_outputs_to_fp32():
    model = Adds()
    for _ in range(2):  # again, as when a model gets another engine
        convert_inputs_and_outputs(model, torch.bfloat16, device_type="cpu")
    outputs = model(torch.ones(3, 2), index=torch.arange(3))
    assert outputs["sum"].dtype == torch.float32
    assert outputs["index"].dtype == torch.int64
    assert len(model._forward_pre_hooks) == 1
