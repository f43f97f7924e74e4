from __future__ import annotations

import pytest
from torch import nn

from accel_backends import ParallelPlan, resolve_plan
from accel_state.errors import ConfigError


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.Linear(4, 4)
        self.out = nn.Linear(4, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.layers = nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 10)


def test_rules_become_names_in_the_order_of_the_model():
    plan = resolve_plan(
        Net(),
        given={
            "units": ["layers.*", "embed", "layers.0"],
            "tail": ["head", "norm"],
            "tensor": {"layers.*.out": "rowwise", "head.weight": "colwise"},
            "attention": ["layers.*.attention"],
            "experts": {"layers.*.out": "grouped_gemm"},
        },
    )
    assert plan == ParallelPlan(
        units=("embed", "layers.0", "layers.1"),
        tail=("norm", "head"),
        tensor={"layers.0.out": "rowwise", "layers.1.out": "rowwise", "head.weight": "colwise"},
        attention=("layers.0.attention", "layers.1.attention"),
        experts={"layers.0.out": "grouped_gemm", "layers.1.out": "grouped_gemm"},
    )


def test_a_resolved_plan_resolves_to_itself():
    plan = resolve_plan(
        Net(), given={"units": ["layers.*"], "tensor": {"head": "colwise"}, "attention": ["layers.0"]}
    )
    assert resolve_plan(Net(), given=plan) == plan


def test_units_may_contain_units():
    plan = resolve_plan(Net(), given={"units": ["layers.*", "layers.*.out"]})
    assert plan.units == ("layers.0", "layers.0.out", "layers.1", "layers.1.out")


WRONG = [
    (3, r"A plan is a mapping such as \{'units': \['layers\.\*'\]\}, but `parallel_plan` is 3\."),
    ({"unit": []}, "Unknown key in `parallel_plan`: `unit`. Known: attention, .*Did you mean `units`"),
    ({"units": "layers.*"}, r"`units` of `parallel_plan` must be a list of names .* got 'layers\.\*'"),
    ({"units": [3]}, "`units` of `parallel_plan` must be a list of names .* got \\[3\\]"),
    (
        {"units": ["layer.*"]},
        r"The rule `layer\.\*` in `units` of `parallel_plan` matches no module of `Net`\. Nearest: `layers\.\*`, ",
    ),
    ({"tail": ["nrm"]}, "`nrm` in `tail` .* Nearest: `norm`.*Correct the rule, or take it out"),
    ({"attention": ["layers.*.self_attn"]}, "`layers.*.self_attn` in `attention`"),
    ({"units": ["layers"]}, r"`layers` in `units` .*`ModuleList`, which is never called.*Write `layers\.\*`"),
    (
        {"units": ["head"], "tail": ["head"]},
        "`head` in `tail` and `head` in `units` of `parallel_plan` overlap.*Take it out of one",
    ),
    ({"units": ["layers.1"], "tail": ["layers.1.out"]}, "`layers.1.out` in `tail` and `layers.1` in `units`"),
    ({"units": ["layers.1.out"], "tail": ["layers.1"]}, "`layers.1` in `tail` and `layers.1.out` in `units`"),
    ({"tensor": ["head"]}, r"`tensor` of `parallel_plan` must map names to styles, got \['head'\]"),
    (
        {"tensor": {"head": "colwize"}},
        "Unknown style for `head` in `tensor` .*`colwize`.*Did you mean `colwise`",
    ),
    ({"experts": {"head": "colwise"}}, "Unknown style for `head` in `experts` .*ep_dispatch_experts"),
    ({"tensor": {"hed.weight": "colwise"}}, "matches no module or parameter .*Nearest: `head.weight`"),
    (
        {"stage": {"blocks": "layers"}},
        "Unknown key in `parallel_plan`: `stage`.*Known: attention, experts, stages, tail, tensor, units",
    ),
]


@pytest.mark.parametrize(("plan", "message"), WRONG)
def test_what_is_wrong_in_a_plan_is_named_with_a_hint(plan, message):
    with pytest.raises(ConfigError, match=message):
        resolve_plan(Net(), given=plan)
