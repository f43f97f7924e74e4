from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from accel_backends import (
    get_model_tp_size,
    get_module_children_bottom_up,
    get_module_class_from_name,
    get_parameters_from_modules,
    is_peft_model,
    model_has_dtensor,
)
from accel_state.errors import ConfigError


def tree():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Conv1d(1, 1, 1)))
    model.add_module("again", model[0])
    return model


def test_modules_come_after_what_is_inside_them_and_once():
    model = tree()
    pairs = get_module_children_bottom_up(model, return_fqns=True)
    assert [name for name, _ in pairs] == ["0", "1.0", "1.1", "1", ""]
    assert get_module_children_bottom_up(model) == [module for _, module in pairs]
    assert pairs[-1][1] is model


def test_a_class_is_found_by_its_name():
    assert get_module_class_from_name(tree(), "Conv1d") is nn.Conv1d
    assert get_module_class_from_name(tree(), "Sequential") is nn.Sequential
    assert get_module_class_from_name(tree(), "Conv2d") is None


def test_a_model_of_peft_is_known_inside_what_wraps_it(monkeypatch):
    class PeftModel(nn.Linear):
        pass

    monkeypatch.delitem(sys.modules, "peft", raising=False)
    assert is_peft_model(PeftModel(1, 1)) is False
    monkeypatch.setitem(sys.modules, "peft", SimpleNamespace(PeftModel=PeftModel))
    assert is_peft_model(PeftModel(1, 1)) is True
    assert is_peft_model(nn.DataParallel(PeftModel(1, 1))) is True
    assert is_peft_model(nn.Linear(1, 1)) is False


def test_one_dtensor_is_enough():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert not model_has_dtensor(model)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = init_device_mesh("cpu", (2,))
        model[1].weight = nn.Parameter(DTensor.from_local(torch.zeros(1, 2), mesh, [Shard(0)]))
        assert model_has_dtensor(model)
    finally:
        dist.destroy_process_group()


def test_parameters_of_modules_are_matched_by_full_names_and_moved():
    model = tree()
    assert get_parameters_from_modules(r"1\.\d", model, "meta") == set(model[1][1].parameters())
    assert model[1][1].weight.is_meta
    assert not model[0].weight.is_meta


def test_parameters_of_given_modules_are_found_and_of_none_there_are_none():
    model = tree()
    assert get_parameters_from_modules([model[0]], model, "cpu") == set(model[0].parameters())
    assert get_parameters_from_modules(None, model, "cpu") == set()


def test_an_expression_that_matches_no_module_is_refused():
    with pytest.raises(ConfigError, match="`1.12` matches the whole name of no module .* Did you mean `1.1`"):
        get_parameters_from_modules("1.12", tree(), "cpu")


class SpreadByTransformers(nn.Linear):
    tp_size = 4


def test_the_tensor_parallel_size_is_what_transformers_specifies_of_its_model():
    assert get_model_tp_size(SpreadByTransformers(2, 2)) == 4
    assert get_model_tp_size(nn.Linear(2, 2)) is None


@pytest.mark.parametrize("settings", [SimpleNamespace(tp_size=8), {"tp_size": 8}])
def test_the_tensor_parallel_size_of_transformers_5_is_in_the_config(settings):
    model = nn.Linear(2, 2)
    model.tp_size = None
    model.config = SimpleNamespace(distributed_config=settings)
    assert get_model_tp_size(model) == 8
