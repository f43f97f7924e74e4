"""Which modules are gathered together, decided by names only."""

import pytest
from torch import nn

from accel_backends.fsdp.groups import ShardGroup, shard_groups, tensors_of_groups, whole_parameters
from accel_ops.named_tensors import named_tensors
from accel_state.errors import ConfigError
from tools.harness.models import make_model


def groups_of(model, **settings):
    return shard_groups(model, named_tensors(model, include_buffers=False), **settings)


def modules_of(groups):
    return [group.modules for group in groups]


def test_units_come_before_what_is_around_them_and_the_root_last():
    groups = groups_of(
        make_model("adapted"), units=["base", "base.blocks.1"], tail=["base.norm", "base.head"]
    )
    assert modules_of(groups) == [("base.blocks.1",), ("base.norm", "base.head"), ("base",), ("",)]
    assert [group.is_tail for group in groups] == [False, True, False, False]


def test_an_embedding_tied_to_the_head_joins_the_tail():
    groups = groups_of(make_model("tied"), units=["embed", "blocks.0", "blocks.1"], tail=["norm", "head"])
    assert modules_of(groups) == [("blocks.0",), ("blocks.1",), ("embed", "norm", "head"), ("",)]
    assert groups[2].is_tail


def test_a_module_that_is_no_unit_joins_the_one_that_it_is_tied_to():
    groups = groups_of(make_model("tied"), units=["blocks.0"], tail=["norm", "head"])
    assert modules_of(groups) == [("blocks.0",), ("embed", "norm", "head"), ("",)]


class RootHolds(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.Linear(3, 3)
        self.other = nn.Linear(3, 3)
        self.table = self.block.weight


def test_a_unit_tied_to_the_root_is_left_to_the_root():
    assert modules_of(groups_of(RootHolds(), units=["block", "other"])) == [("other",), ("",)]


@pytest.mark.parametrize("unit", ["first", "second"])
def test_one_module_at_two_places_is_one_unit(unit):
    model = nn.ModuleDict({"first": nn.Sequential(nn.Linear(2, 2)), "head": nn.Linear(2, 2)})
    model["second"] = model["first"]
    groups = groups_of(model, units=[unit], tail=["head"])
    assert modules_of(groups) == [("first",), ("head",), ("",)]
    assert [group.is_tail for group in groups] == [False, True, False]
    assert [len(found) for found in tensors_of_groups(named_tensors(model), groups)] == [2, 2, 0]


def test_a_unit_without_its_own_parameters_is_no_group():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert modules_of(groups_of(model, units=["0", "1"])) == [("0",), ("",)]
    assert modules_of(groups_of(model, units=["0"], whole=["0.weight", "0.bias"])) == [("",)]


def test_every_tensor_belongs_to_one_group():
    model = make_model("buffered")
    groups = groups_of(model, units=["blocks.0", "blocks.1"])
    names = [
        [found.names[0] for found in tensors] for tensors in tensors_of_groups(named_tensors(model), groups)
    ]
    assert sorted(name for group in names for name in group) == sorted(
        [*dict(model.named_parameters()), *dict(model.named_buffers())]
    )
    assert set(names[-1]) == {"scale", "mix", "offset", "count"}


def test_modules_kept_in_fp32_are_separate_groups():
    groups = groups_of(make_model("odd"), units=["blocks.0"], fp32=["blocks.0.norm"])
    assert groups[0] == ShardGroup(("blocks.0.norm",), keeps_fp32=True)
    assert not groups[1].keeps_fp32


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        ("nothing", "no submodule `nothing`"),
        ("", "no submodule ``"),
        ("blocks", r"Name its members: `blocks\.\*`"),
    ],
)
def test_a_unit_that_cannot_be_gathered_is_refused(unit, message):
    with pytest.raises(ConfigError, match=message):
        groups_of(make_model("odd"), units=[unit])


def test_scalars_and_ignored_modules_stay_unsharded():
    model = make_model("buffered")
    assert whole_parameters(model, named_tensors(model, include_buffers=False), None) == ["scale"]
    assert whole_parameters(model, named_tensors(model, include_buffers=False), r"blocks\.0\.norm") == [
        "scale",
        "blocks.0.norm.weight",
        "blocks.0.norm.bias",
    ]
    assert whole_parameters(model, named_tensors(model, include_buffers=False), [model.blocks[1].up]) == [
        "scale",
        "blocks.1.up.weight",
        "blocks.1.up.bias",
    ]
    with pytest.raises(ConfigError, match="a Linear that is not part of the Buffered"):
        whole_parameters(model, named_tensors(model, include_buffers=False), [nn.Linear(1, 1)])
