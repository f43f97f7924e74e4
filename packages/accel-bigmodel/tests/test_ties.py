from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from accel_bigmodel import (
    check_tied_parameters_in_config,
    dispatch_model,
    ensure_weights_retied,
    find_tied_parameters,
    retie_parameters,
)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(4, 3), nn.Linear(3, 3), nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight


def skeleton() -> Tied:
    with torch.device("meta"):
        return Tied()


def give_memory(module: nn.Module) -> nn.Module:
    """Gives new parameters, as functions for FSDP do."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            setattr(module, name, nn.Parameter(torch.zeros_like(parameter, device="cpu")))
    return module


def give_storage(module: nn.Module) -> nn.Module:
    return module.to_empty(device="cpu", recurse=False)


@pytest.mark.parametrize("give", [give_memory, give_storage])
def test_tied_weights_stay_tied_when_each_module_gets_its_memory(give):
    model = skeleton()
    retied = ensure_weights_retied(give, model, torch.device("cpu"))
    for module in model.modules():
        assert retied(module) is module
    assert model.head.weight is model.embed.weight
    assert not any(parameter.is_meta for parameter in model.parameters())
    model = skeleton()
    for module in model.modules():
        give(module)
    assert model.head.weight is not model.embed.weight  # what it is for


def test_a_function_that_leaves_tied_weights_empty_gets_them_made():
    model = skeleton()
    model.embed.weight.requires_grad_(False)
    retied = ensure_weights_retied(lambda module: None, model, torch.device("cpu"))
    for module in model.modules():
        retied(module)
    assert model.head.weight is model.embed.weight
    assert (model.embed.weight.device.type, model.embed.weight.requires_grad) == ("cpu", False)
    assert model.body.weight.is_meta


def test_without_tied_weights_the_function_is_handed_back():
    assert ensure_weights_retied(give_memory, nn.Linear(2, 2), torch.device("cpu")) is give_memory


def configured(*, output: object = None, **config: object) -> nn.Module:
    model = nn.Linear(2, 2)
    model.config = SimpleNamespace(**config)
    model.get_output_embeddings = lambda: output
    return model


def test_the_config_reports_of_ties_where_there_is_an_output_to_tie():
    assert not check_tied_parameters_in_config(nn.Linear(2, 2))
    assert check_tied_parameters_in_config(configured(output=nn.Linear(2, 2), tie_word_embeddings=True))
    assert not check_tied_parameters_in_config(configured(tie_word_embeddings=True))
    assert not check_tied_parameters_in_config(configured(output=nn.Linear(2, 2), tie_word_embeddings=False))
    assert check_tied_parameters_in_config(configured(is_encoder_decoder=True, tie_encoder_decoder=True))
    of_text = SimpleNamespace(tie_word_embeddings=True)
    assert check_tied_parameters_in_config(
        configured(output=nn.Linear(2, 2), get_text_config=lambda: of_text)
    )
    assert find_tied_parameters(Tied()) == [["embed.weight", "head.weight"]]


def test_ties_are_found_by_identity_on_any_device():
    for device in ("cpu", "meta"):
        layers = nn.ModuleList(nn.Linear(2, 2, device=device) for _ in range(4))
        layers[3].weight = layers[0].weight
        layers[2].bias = layers[1].bias
        assert find_tied_parameters(layers) == [["0.weight", "3.weight"], ["1.bias", "2.bias"]]
    equal = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)])
    equal[1].load_state_dict(equal[0].state_dict())
    assert find_tied_parameters(equal) == []


def test_one_module_under_two_names_ties_all_its_parameters():
    layer = nn.Linear(2, 2)
    assert find_tied_parameters(nn.Sequential(layer, nn.ReLU(), layer)) == [
        ["0.bias", "2.bias"],
        ["0.weight", "2.weight"],
    ]


def test_ties_that_broke_are_made_again():
    model = nn.Sequential(nn.Linear(2, 2, device="meta"), nn.Linear(2, 2))
    retie_parameters(model, [["0.weight", "1.weight"]])
    assert model[0].weight is model[1].weight
    assert not model[0].weight.is_meta


def test_a_tied_weight_moves_to_a_device_once():
    model = dispatch_model(Tied(), {"embed": "meta", "body": "cpu", "head": "meta"}, main_device="meta")
    assert model.embed.weight.is_meta
    assert model.head.weight is model.embed.weight
