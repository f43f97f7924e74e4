from __future__ import annotations

import pytest
from torch import nn

from accel_backends import ParallelPlan, resolve_plan
from accel_backends.plans.policies import NoWrap, TransformerBased


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)


class Net(nn.Module):
    parallel_plan = {"units": ["blocks.0"], "tail": ["head"], "attention": ["blocks.*.layer"]}

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 10)


class Inferred(Net):
    parallel_plan = None


ATTENTION = ("blocks.0.layer", "blocks.1.layer")


@pytest.mark.parametrize(
    ("given", "policy", "expected"),
    [
        (None, None, ParallelPlan(("blocks.0",), ("head",), attention=ATTENTION)),
        ({"units": ["blocks.1"]}, None, ParallelPlan(("blocks.1",), ("head",), attention=ATTENTION)),
        (
            None,
            TransformerBased(("Linear",)),
            ParallelPlan(("embed", *ATTENTION, "head"), attention=ATTENTION),
        ),
        ({"units": ["embed"], "attention": []}, NoWrap(), ParallelPlan(("embed",))),
        (ParallelPlan(tail=("norm",)), None, ParallelPlan(("blocks.0",), ("norm",), attention=ATTENTION)),
    ],
)
def test_each_field_comes_from_the_first_source_that_has_it(given, policy, expected):
    assert resolve_plan(Net(), given=given, policy=policy) == expected


def test_an_empty_list_in_a_mapping_is_an_answer():
    assert resolve_plan(Net(), given={"units": [], "tail": []}) == ParallelPlan(attention=ATTENTION)


@pytest.mark.parametrize(
    ("given", "units", "tail"),
    [
        ({"units": ["head"]}, ("head",), ("norm",)),
        ({"tail": ["blocks.1"]}, ("embed", "blocks.0"), ("blocks.1",)),
        ({"tail": ["blocks.1.layer"]}, ("embed", "blocks.0"), ("blocks.1.layer",)),
    ],
)
def test_what_a_source_of_higher_rank_took_is_left_out_of_the_other_field(given, units, tail):
    plan = resolve_plan(Inferred(), given=given)
    assert (plan.units, plan.tail) == (units, tail)


def test_the_model_stays_as_it_is():
    model = Net()
    before = {name: id(module) for name, module in model.named_modules()}
    resolve_plan(model)
    assert {name: id(module) for name, module in model.named_modules()} == before
