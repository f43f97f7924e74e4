"""Where stages of a model begin, and which tensors they compute with."""

import pytest
import torch
from torch import nn

from accel_backends.plans.sources import resolve_plan
from accel_backends.plans.stages import balanced_firsts, stages_of
from accel_ops.named_tensors import named_tensors
from accel_state.errors import ConfigError
from tools.harness.models import Block, make_model


@pytest.mark.parametrize(
    ("sizes", "num_stages", "firsts"),
    [
        ([1, 1, 1, 1], 2, [2]),
        ([1, 1, 1, 1], 3, [2, 3]),
        ([1, 1, 1, 1], 4, [1, 2, 3]),
        ([9, 1, 1, 1], 3, [1, 3]),
        ([1, 1, 1, 9], 3, [2, 3]),
        ([5, 1, 1, 5], 2, [2]),
        ([7], 1, []),
    ],
)
def test_the_largest_stage_is_as_small_as_can_be_and_none_is_empty(sizes, num_stages, firsts):
    assert balanced_firsts(sizes, num_stages) == firsts


def starts(model, num_stages, plan=None, **options):
    return list(stages_of(model, resolve_plan(model, given=plan), num_stages, **options).starts)


def users(model, num_stages, plan=None):
    stages = stages_of(model, resolve_plan(model, given=plan), num_stages)
    return {found.names[0]: sorted(stages.of(found)) for found in named_tensors(model)}


def test_stages_begin_with_blocks_or_the_layers_before_and_behind_them():
    assert starts(make_model("odd"), 2) == ["blocks.1"]
    assert starts(make_model("odd"), 6) == ["blocks.0", "blocks.1", "blocks.2", "norm", "head"]


def test_layers_in_sequence_are_blocks_of_a_model_that_repeats_none():
    assert starts(nn.Sequential(*(nn.Linear(2, 2) for _ in range(4))), 2) == ["2"]


def test_no_stage_begins_inside_of_a_unit_or_a_named_class():
    def model():
        return nn.Sequential(*(nn.Sequential(Block(3, 3), Block(3, 3)) for _ in range(3)))

    assert starts(model(), 3, {"units": ["*"]}) == ["1", "2"]
    assert starts(model(), 3, no_split_module_classes=["Sequential"]) == ["1", "2"]


def test_tied_ends_belong_to_two_stages_and_all_that_is_not_in_order_to_every_stage():
    of_tied = users(make_model("tied"), 2)
    assert of_tied["embed.weight"] == [0, 1]
    assert of_tied["blocks.0.up.weight"] == [0]
    assert of_tied["norm.weight"] == [1]
    of_adapted = users(make_model("adapted"), 2)
    assert of_adapted["base.first.weight"] == [0]
    assert of_adapted["down.0.weight"] == [0, 1]


def test_an_embedding_without_a_head_belongs_to_the_last_stage_too():
    model = nn.Module()
    model.embed = nn.Embedding(5, 3)
    model.blocks = nn.ModuleList(Block(3, 3) for _ in range(2))
    assert users(model, 2)["embed.weight"] == [0, 1]


def test_the_plan_names_blocks_and_what_they_hand_on():
    class Reader(nn.Module):
        def forward(self, hidden, memory):
            return hidden + memory

    model = nn.Module()
    model.readers = nn.ModuleDict({"first": Reader(), "second": Reader()})
    stages = stages_of(model, resolve_plan(model, given={"stages": {"readers.*": ["memory"]}}), 2)
    assert stages.starts == ("readers.second",)
    assert {block.handed_on for block in stages.blocks.values()} == {("hidden", "memory")}
    with pytest.raises(ConfigError, match=r"sends `nothing`.*arguments are: `hidden`, `memory`"):
        starts(model, 2, {"stages": {"readers.*": ["nothing"]}})
    with pytest.raises(ConfigError, match="must map blocks to lists"):
        starts(model, 2, {"stages": ["readers.*"]})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_stages": 7}, r"6 parts .*, but the pipeline has 7 stages.*'stages'"),
        ({"num_stages": 2, "split_points": ["one"]}, "`one` in `split_points` is no module of `Odd`"),
        (
            {"num_stages": 2, "split_points": ["blocks"]},
            "no block of `Odd`.*Choose among `blocks.0`, `blocks.1`",
        ),
        ({"num_stages": 3, "split_points": ["blocks.2", "blocks.1"]}, "not in the order"),
    ],
)
def test_stages_that_cannot_be_are_refused_with_what_can(options, match):
    with pytest.raises(ConfigError, match=match):
        stages_of(make_model("odd"), resolve_plan(make_model("odd")), **options)
    with pytest.raises(ConfigError, match="`Linear` repeats no blocks.*parallel_plan"):
        starts(nn.Linear(2, 2), 2)


def test_a_model_on_the_meta_device_has_the_same_stages():
    with torch.device("meta"):
        model = make_model("tied")
    assert users(model, 2) == users(make_model("tied"), 2)
