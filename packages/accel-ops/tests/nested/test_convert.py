from __future__ import annotations

import pickle

import torch

from accel_ops import ConvertOutputsToFp32, convert_outputs_to_fp32, convert_to_fp32


@convert_outputs_to_fp32
def decorated(rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Says what it does."""
    return {"half": rows.half(), "count": torch.tensor(1)}


def plain(rows: torch.Tensor) -> torch.Tensor:
    return rows.bfloat16()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.layer(rows).half()


class Wrapped:
    @convert_outputs_to_fp32
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.half()


def test_only_half_precision_is_converted():
    data = {
        "a": torch.ones(1, dtype=torch.float16),
        "b": [torch.ones(1, dtype=torch.bfloat16), torch.ones(1, dtype=torch.float64)],
        "c": torch.ones(1, dtype=torch.int8),
        "d": "text",
    }
    result = convert_to_fp32(data)
    assert result["a"].dtype == result["b"][0].dtype == torch.float32
    assert result["b"][1] is data["b"][1]
    assert result["c"] is data["c"]
    assert result["d"] == "text"


def test_outputs_come_in_float32_and_the_wrapper_looks_like_the_function():
    assert decorated(torch.ones(2))["half"].dtype == torch.float32
    assert decorated.__name__ == "decorated"
    assert decorated.__doc__ == "Says what it does."
    assert ConvertOutputsToFp32(plain).__wrapped__ is plain


def test_conversion_is_differentiable():
    weight = torch.ones(1, requires_grad=True)
    convert_outputs_to_fp32(plain)(weight * 3).backward()
    assert weight.grad is not None
    assert weight.grad.item() == 3


def test_wrapped_and_decorated_functions_pickle():
    wrapped = pickle.loads(pickle.dumps(ConvertOutputsToFp32(plain)))
    assert wrapped(torch.ones(1)).dtype == torch.float32
    assert pickle.loads(pickle.dumps(decorated)) is decorated


def test_a_model_with_a_wrapped_forward_pickles_and_still_converts():
    model = Model()
    model.forward = convert_outputs_to_fp32(model.forward)
    again = pickle.loads(pickle.dumps(model))
    assert again(torch.ones(1, 2)).dtype == torch.float32
    assert torch.equal(again(torch.ones(1, 2)), model(torch.ones(1, 2)))
    with torch.no_grad():
        again.layer.weight.zero_()
    assert not torch.equal(again(torch.ones(1, 2)), model(torch.ones(1, 2)))


def test_a_decorated_method_is_bound_to_its_object():
    assert Wrapped().forward(torch.ones(1)).dtype == torch.float32


def test_a_decorated_method_keeps_its_attributes_and_pickles():
    bound = Wrapped().forward
    assert bound.__name__ == "forward"
    assert isinstance(bound.__self__, Wrapped)
    assert pickle.loads(pickle.dumps(bound))(torch.ones(1)).dtype == torch.float32
    assert pickle.loads(pickle.dumps(Wrapped.forward)) is Wrapped.forward
