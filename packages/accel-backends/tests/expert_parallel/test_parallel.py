"""Which experts are distributed, and what is refused; that they train right is tested with the Accelerator."""

import pytest
import torch
from torch import nn

from accel_backends.expert_parallel.parallel import expert_modules
from accel_backends.plans.plan import ParallelPlan
from accel_backends.plans.sources import resolve_plan
from accel_state.errors import ConfigError
from tools.harness.models import StackedExperts, make_model

DISPATCHED = "ep_dispatch_experts"


def test_the_plan_names_the_modules_that_hold_experts():
    model = make_model("mixture")
    found = expert_modules(model, resolve_plan(model), num_ranks=3)
    assert found == {name: model.get_submodule(name) for name in ("blocks.0.experts", "blocks.1.experts")}


def without_experts():
    return make_model("odd"), ParallelPlan()


def shared_one_by_one():
    return make_model("mixture"), ParallelPlan(experts={"blocks.0.experts": DISPATCHED})


def listed():
    model = nn.ModuleDict({"experts": nn.ModuleList(nn.Linear(2, 2) for _ in range(4))})
    return model, ParallelPlan(experts={"experts": DISPATCHED})


def not_stacked():
    return make_model("mixture"), ParallelPlan(experts={"blocks.0": DISPATCHED})


def a_parameter():
    return make_model("mixture"), ParallelPlan(experts={"blocks.0.experts.up": DISPATCHED})


def tied():
    model = nn.Module()
    model.experts = StackedExperts(4, 3, 5)
    model.head = nn.Linear(3, 5)
    model.head.weight = model.experts.up
    return model, ParallelPlan(experts={"experts": DISPATCHED})


def scaled():
    model = nn.Module()
    model.experts = StackedExperts(4, 3, 5)
    model.experts.scale = nn.Parameter(torch.tensor(1.0))
    return model, ParallelPlan(experts={"experts": DISPATCHED})


@pytest.mark.parametrize(
    ("make", "num_ranks", "message"),
    [
        (without_experts, 2, r"The Odd has no plan that names experts to spread over 2 ranks \(`ep_size`\)"),
        (
            shared_one_by_one,
            4,
            r"`blocks.0.experts` has 6 experts, which 4 ranks .* divides 6: 1, 2, 3, 6\.",
        ),
        (
            listed,
            2,
            r"`experts` is a `ModuleList` with .* Stack the experts of a list, or set `ep_size` to 1",
        ),
        (
            not_stacked,
            2,
            r"`blocks.0` is a `ExpertBlock` with the parameters `norm.weight` \(10,\), .* along its first dimension",
        ),
        (a_parameter, 2, "`blocks.0.experts.up` is a parameter of the Mixture"),
        (tied, 2, "`experts.up` and `head.weight` are one tensor"),
        (scaled, 2, r"`experts` is a `StackedExperts` with the parameters .*`scale` \(\)"),
    ],
)
def test_experts_that_ranks_cannot_share_are_refused(make, num_ranks, message):
    model, plan = make()
    with pytest.raises(ConfigError, match=message):
        expert_modules(model, plan, num_ranks=num_ranks)
