from __future__ import annotations

import functools

import pytest
from torch import nn
from torch.distributed.fsdp import CPUOffload
from torch.distributed.fsdp.wrap import (
    _recursive_wrap,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)

from accel_backends import ParallelPlan, resolve_plan
from accel_backends.plans.policies import CallableBased, NoWrap, SizeBased, TransformerBased, units_policy
from accel_state.errors import ConfigError


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = Mix()
        self.norm = nn.LayerNorm(4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 10)


class Declaring(Net):
    _no_split_modules = ["Block", "NotInThisOne"]


def test_units_are_the_classes_named_and_the_embedding_and_the_tail_is_found():
    assert resolve_plan(Net(), policy=TransformerBased(("Mix",))) == ParallelPlan(
        units=("embed", "blocks.0.mix", "blocks.1.mix"), tail=("norm", "head")
    )


def test_classes_may_lie_within_each_other():
    plan = resolve_plan(Net(), policy=TransformerBased(("Block", "Mix")))
    assert plan.units == ("embed", "blocks.0", "blocks.0.mix", "blocks.1", "blocks.1.mix")


def test_the_classes_are_those_that_the_model_declares_unless_named():
    class Both(Declaring):
        parallel_plan = {"units": ["head"], "tail": []}

    assert resolve_plan(Both(), policy=TransformerBased()).units == ("embed", "blocks.0", "blocks.1")


def test_a_model_that_declares_no_classes_uses_its_other_plans():
    assert resolve_plan(Net(), policy=TransformerBased()).units == ("embed", "blocks.0", "blocks.1")


def test_an_unknown_class_is_named_with_those_there_are():
    with pytest.raises(
        ConfigError,
        match="`Blok` in `transformer_cls_names_to_wrap` is the class of no module with parameters in `Net`. "
        "Nearest: `Block`. Its classes are Block, Embedding, LayerNorm, Linear, Mix.",
    ):
        resolve_plan(Net(), policy=TransformerBased(("Mix", "Blok")))


def test_a_policy_that_finds_no_block_at_all_is_an_error():
    with pytest.raises(ConfigError, match="finds no unit in `Linear`.*`SIZE_BASED_WRAP` or `NO_WRAP`"):
        resolve_plan(nn.Linear(2, 2), policy=TransformerBased())


def test_no_wrap_makes_the_model_one_unit_whatever_it_declares():
    model = Declaring()
    model.parallel_plan = {"units": ["head"], "tail": ["norm"]}
    assert resolve_plan(model, policy=NoWrap()) == ParallelPlan()


def units_of_torch(model, policy):
    """Return the names of the modules that torch's own auto-wrapping wraps."""
    wrapped = []
    names = {module: name for name, module in model.named_modules()}

    def wrap(module, **kwargs):
        wrapped.append(names[module])
        return module

    _recursive_wrap(model, policy, wrap, set(), set(), only_wrap_children=True, cpu_offload=CPUOffload())
    return set(wrapped)


@pytest.mark.parametrize("min_num_params", [1, 8, 21, 28, 29, 40, 50, 51, 1000])
def test_units_by_size_are_those_of_torch(min_num_params):
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=min_num_params)
    plan = resolve_plan(Net(), policy=SizeBased(min_num_params))
    assert set(plan.units) == units_of_torch(Net(), policy)
    assert plan.tail == ()


@pytest.mark.parametrize(
    "policy",
    [
        functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block}),
        lambda module, recurse, nonwrapped_numel: recurse or isinstance(module, nn.LayerNorm),
        lambda module, recurse, nonwrapped_numel: (
            recurse or (nonwrapped_numel > 25 and not isinstance(module, nn.ModuleList))
        ),
    ],
)
def test_units_by_a_function_are_those_of_torch(policy):
    assert set(resolve_plan(Net(), policy=CallableBased(policy)).units) == units_of_torch(Net(), policy)


def test_a_function_that_chooses_a_list_is_refused():
    with pytest.raises(ConfigError, match="`auto_wrap_policy` chose `blocks`, a `ModuleList`"):
        resolve_plan(Net(), policy=CallableBased(lambda module, recurse, nonwrapped_numel: True))


def test_the_settings_of_fsdp_name_a_policy():
    def own(module, recurse, nonwrapped_numel):
        return False

    assert units_policy(None) is None
    assert units_policy("transformer_based_wrap", class_names=["Block"]) == TransformerBased(("Block",))
    assert units_policy("TRANSFORMER_BASED_WRAP") == TransformerBased()
    assert units_policy("SIZE_BASED_WRAP", min_num_params=7) == SizeBased(7)
    assert units_policy("SIZE_BASED_WRAP") == SizeBased(100_000_000)
    assert units_policy("NO_WRAP") == NoWrap()
    assert units_policy(own) == CallableBased(own)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("SIZE_BASE_WRAP", "Unknown auto-wrap policy `SIZE_BASE_WRAP`.*Did you mean `SIZE_BASED_WRAP`"),
        (3, "`auto_wrap_policy` must be one of TRANSFORMER_BASED_WRAP, .*, got 3"),
    ],
)
def test_what_is_no_policy_is_refused(policy, message):
    with pytest.raises(ConfigError, match=message):
        units_policy(policy)
