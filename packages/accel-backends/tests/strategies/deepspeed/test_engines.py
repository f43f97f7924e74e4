from types import SimpleNamespace

import pytest
import torch
from torch import nn

from accel_backends.strategies.deepspeed.engines import place_for_evaluation


def placed(model, **precision):
    return place_for_evaluation(model, precision, context=SimpleNamespace(device=torch.device("cpu")))


class Sums(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, batch, *, index):
        self.seen = batch["rows"].dtype, index.dtype
        return batch["rows"] + self.weight


@pytest.mark.parametrize("auto_cast", [True, False])
def test_inputs_of_a_model_that_is_not_trained_are_cast_in_fp16_on_request(auto_cast):
    config = {"fp16": {"enabled": True, "auto_cast": auto_cast}}
    model = place_for_evaluation(Sums(), config, context=SimpleNamespace(device=torch.device("cpu")))
    outputs = model({"rows": torch.ones(3, 2)}, index=torch.arange(3))
    assert model.weight.dtype == torch.float16
    assert model.seen == (torch.float16 if auto_cast else torch.float32, torch.int64)
    assert outputs.dtype == torch.float32


@pytest.mark.parametrize(
    ("precision", "kept"),
    [("fp16", {"often", "always"}), ("bf16", {"always"})],
)
def test_modules_that_transformers_keeps_in_fp32_stay_so(precision, kept):
    inner = nn.ModuleDict({name: nn.Linear(2, 2) for name in ("often", "always", "oftener")})
    inner._keep_in_fp32_modules, inner._keep_in_fp32_modules_strict = ["often"], {"always"}
    model = placed(nn.Sequential(inner), **{precision: {"enabled": True}})
    found = {name.split(".")[1] for name, one in model.named_parameters() if one.dtype == torch.float32}
    assert found == kept


class Immovable(nn.Linear):
    """As a model in 8 bits of an older bitsandbytes."""

    def to(self, *args, **kwargs):
        raise ValueError("`.to` is not supported")


def test_a_model_that_is_on_the_device_is_not_moved():
    assert placed(Immovable(2, 2), bf16={"enabled": True}).weight.dtype == torch.bfloat16
