import pytest
import torch

from accel_backends.checkpoint_formats.named import named_parameters
from accel_backends.checkpoint_formats.protocol import PreparedOptimizer
from accel_backends.strategies.single import SingleStrategy
from accel_state.errors import CheckpointError
from tools.harness.models import make_model


def test_names_come_in_the_order_of_the_state_dict_of_the_optimizer():
    model = make_model("odd")
    head, first = list(model.head.parameters()), list(model.first.parameters())
    optimizer = torch.optim.SGD([{"params": head}, {"params": reversed(first)}], lr=1)
    groups = SingleStrategy().optimizer_parameters(optimizer, [model])
    assert [list(group) for group in groups] == [["head.weight", "head.bias"], ["first.bias", "first.weight"]]
    assert all(one is model.get_parameter(name) for group in groups for name, one in group.items())


def test_a_tied_parameter_has_its_first_name():
    model = make_model("tied")
    optimizer = torch.optim.SGD([model.head.weight], lr=1)
    assert [list(group) for group in SingleStrategy().optimizer_parameters(optimizer, [model])] == [
        ["embed.weight"]
    ]


def test_parameters_of_two_models_begin_with_the_number_of_their_model():
    models = [torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)]
    optimizer = torch.optim.SGD([*models[1].parameters(), models[0].bias], lr=1)
    [named] = SingleStrategy().optimizer_parameters(optimizer, models)
    assert list(named) == ["1.weight", "1.bias", "0.bias"]
    assert named["1.bias"] is models[1].bias
    assert named["0.bias"] is models[0].bias


def test_an_optimizer_of_one_of_several_models_needs_no_numbers():
    models = [torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)]
    [named] = SingleStrategy().optimizer_parameters(torch.optim.SGD(models[1].parameters(), lr=1), models)
    assert list(named) == ["weight", "bias"]
    assert named["weight"] is models[1].weight


def test_a_parameter_of_no_model_is_refused_with_its_place():
    model = torch.nn.Linear(2, 3)
    groups = [{"params": [model.weight]}, {"params": [torch.nn.Parameter(torch.ones(4, 5))]}]
    optimizer = torch.optim.SGD(groups, lr=1)
    assert [list(group) for group in SingleStrategy().optimizer_parameters(optimizer, [model])] == [
        ["weight"],
        [1],
    ]
    with pytest.raises(
        CheckpointError, match=r"shape \(4, 5\) in group 1 of the SGD is part of no prepared model"
    ):
        named_parameters(PreparedOptimizer(SingleStrategy(), optimizer, [model]))
