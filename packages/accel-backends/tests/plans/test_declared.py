from __future__ import annotations

import pytest
import torch
from torch import nn

from accel_backends import ParallelPlan, resolve_plan
from accel_backends.plans.declared import PLANS
from accel_state.errors import ConfigError


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.ModuleList([Block(), Block()])
        self.out = nn.Linear(4, 10)


class WithAttribute(Net):
    parallel_plan = {"units": ["body.*.layer"], "tail": ["out"]}


class WithProperty(Net):
    @property
    def parallel_plan(self):
        return {"units": [f"body.{number}.layer" for number in range(len(self.body))], "tail": ["out"]}


class WithMethod(Net):
    def parallel_plan(self):
        return ParallelPlan(units=("body.*.layer",), tail=("out",))


EXPECTED = ParallelPlan(units=("body.0.layer", "body.1.layer"), tail=("out",))


@pytest.mark.parametrize("kind", [WithAttribute, WithProperty, WithMethod])
def test_a_model_declares_its_plan(kind):
    assert resolve_plan(kind()) == EXPECTED


def test_a_model_may_get_its_plan_from_outside():
    model = Net()
    model.parallel_plan = {"units": ["body.1"], "tail": []}
    assert resolve_plan(model) == ParallelPlan(units=("body.1",))


def test_the_names_of_a_plan_are_relative_to_the_module_that_declares_it():
    model = nn.Sequential(nn.Linear(4, 4), WithAttribute())
    assert resolve_plan(model) == ParallelPlan(units=("1.body.0.layer", "1.body.1.layer"), tail=("1.out",))


def test_the_plan_is_found_through_a_wrapper_that_passes_attributes_on():
    plan = resolve_plan(torch.compile(WithAttribute()))
    assert plan.units == ("_orig_mod.body.0.layer", "_orig_mod.body.1.layer")


def test_two_models_in_one_have_the_units_of_both_and_no_common_tail():
    plan = resolve_plan(nn.ModuleDict({"a": WithAttribute(), "b": WithMethod()}))
    assert plan == ParallelPlan(
        units=("a.body.0.layer", "a.body.1.layer", "b.body.0.layer", "b.body.1.layer")
    )


def test_a_mistake_in_a_declared_plan_names_the_class():
    model = Net()
    model.parallel_plan = {"units": ["bdy.*"]}
    with pytest.raises(
        ConfigError, match=r"`bdy\.\*` in `units` of the plan of `Net` .* of `Net`. Nearest: `body\.\*`"
    ):
        resolve_plan(nn.Sequential(model))


@pytest.fixture
def registered():
    names = []

    def register(name, plan):
        PLANS.register(name, plan)
        names.append(name)

    yield register
    for name in names:
        PLANS.unregister(name)


@pytest.mark.parametrize("plan", [{"units": ["body.*.layer"]}, lambda model: {"units": ["body.*.layer"]}])
def test_a_package_declares_plans_for_its_models(registered, plan):
    registered(f"{Net.__module__}.Net", plan)
    assert resolve_plan(Net()).units == EXPECTED.units
    assert resolve_plan(nn.Sequential(Net())).units == ("0.body.0.layer", "0.body.1.layer")


class Kept(Net):
    __module__ = "my_package.models.net"


@pytest.mark.parametrize("name", ["my_package.Kept", "my_package.models.Kept", "my_package.models.net.Kept"])
def test_a_class_is_known_under_each_of_its_packages(registered, name):
    registered(name, {"units": ["body.1"]})
    assert resolve_plan(Kept()).units == ("body.1",)


def test_the_plan_of_a_base_class_serves_its_subclasses(registered):
    registered("my_package.Kept", {"units": ["body.1"]})
    assert resolve_plan(type("Child", (Kept,), {})()).units == ("body.1",)


def test_the_plan_of_the_model_comes_before_that_of_its_package(registered):
    registered(f"{WithAttribute.__module__}.WithAttribute", {"units": ["body.1"], "attention": ["body.1"]})
    plan = resolve_plan(WithAttribute())
    assert plan.units == EXPECTED.units
    assert plan.attention == ("body.1",)
