from __future__ import annotations

import pytest
import torch
from torch import nn

from accel_bigmodel import check_device_same, recursive_getattr, set_module_tensor_to_device
from accel_state.errors import ConfigError, UnknownNameError


def test_a_tensor_gets_a_value_and_leaves_meta():
    model = nn.Sequential(nn.Linear(2, 2, device="meta"))
    model[0].weight.requires_grad_(False)
    model[0].weight.mark = 3
    set_module_tensor_to_device(model, "0.weight", "cpu", value=torch.ones(2, 2))
    assert torch.equal(model[0].weight, torch.ones(2, 2))
    assert not model[0].weight.requires_grad
    assert model[0].weight.mark == 3
    with pytest.raises(ConfigError, match=r"`0\.bias` is on the meta device.*pass its `value`"):
        set_module_tensor_to_device(model, "0.bias", "cpu")


def test_dtypes_of_values():
    model = nn.BatchNorm1d(2)
    set_module_tensor_to_device(model, "weight", "cpu", value=torch.ones(2, dtype=torch.float64))
    assert model.weight.dtype == torch.float32
    set_module_tensor_to_device(model, "weight", "cpu", value=torch.ones(2), dtype="float16")
    assert model.weight.dtype == torch.float16
    set_module_tensor_to_device(model, "num_batches_tracked", "cpu", value=torch.tensor(4), dtype="float16")
    assert model.num_batches_tracked.dtype == torch.int64
    assert model.num_batches_tracked == 4


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"`weight` has the shape \(2, 2\), the `value` has \(3,\)"):
        set_module_tensor_to_device(nn.Linear(2, 2), "weight", "cpu", value=torch.ones(3))
    with pytest.raises(UnknownNameError, match="Did you mean `weight`"):
        set_module_tensor_to_device(nn.Linear(2, 2), "wieght", "cpu")


def test_shared_weights_are_moved_once():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    known = {model[0].weight.data_ptr(): {}}
    for name in ("0.weight", "1.weight"):
        set_module_tensor_to_device(model, name, "meta", tied_params_map=known)
    assert model[0].weight is model[1].weight
    assert model[0].weight.is_meta


def test_small_things():
    assert recursive_getattr(nn.Sequential(nn.Linear(2, 3)), "0.out_features") == 3
    assert check_device_same(torch.device("cuda"), torch.device("cuda:0"))
    assert not check_device_same(torch.device("cuda:1"), torch.device("cuda:0"))
    assert not check_device_same(torch.device("cpu"), torch.device("cuda:0"))
