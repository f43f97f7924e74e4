from __future__ import annotations

import pytest
from torch import nn

from accel_backends import ParallelPlan, has_repeated_blocks, is_repeated_blocks, resolve_plan


class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)


class Net(nn.Module):
    def __init__(self, blocks=None, *, has_head=True):
        super().__init__()
        self.positions = nn.Embedding(3, 4)
        self.embed = nn.Embedding(10, 4)
        self.blocks = nn.ModuleList([Block(), Block()]) if blocks is None else blocks
        self.norm = nn.LayerNorm(4)
        if has_head:
            self.head = nn.Linear(4, 10)


class Stage(nn.Module):
    def __init__(self, width, blocks):
        super().__init__()
        self.reduce = nn.Linear(width, width, bias=False)
        self.blocks = blocks(Block(width) for _ in range(2))


class ExpertLayer(nn.Module):
    def __init__(self, num_experts=6):
        super().__init__()
        self.router = nn.Linear(4, num_experts)
        self.experts = nn.ModuleList(Block() for _ in range(num_experts))


class DenseLayer(ExpertLayer):
    def __init__(self):
        super().__init__(num_experts=1)


def in_sequence(blocks):
    return nn.Sequential(*blocks)


def test_repeated_blocks_are_a_list_of_one_class():
    assert is_repeated_blocks(nn.ModuleList([Block(), Block()]))
    assert not is_repeated_blocks(nn.ModuleList([Block(), nn.ReLU()]))
    assert not is_repeated_blocks(nn.ModuleList())
    assert not is_repeated_blocks(nn.Sequential(Block(), Block()))


def test_repeated_blocks_are_found_at_any_depth():
    assert has_repeated_blocks(nn.Sequential(Net()))
    assert not has_repeated_blocks(nn.Sequential(Block(), Block()))


@pytest.mark.parametrize(
    ("blocks", "keys"),
    [
        (nn.ModuleList([Block(), Block(), Block()]), "012"),
        (nn.ModuleList([Block()]), "0"),
        (nn.Sequential(Block(), Block()), "01"),
        (nn.ModuleDict({"a": Block(), "b": Block()}), "ab"),
    ],
)
def test_units_are_the_embedding_and_the_blocks_and_the_tail_is_norm_and_head(blocks, keys):
    assert resolve_plan(Net(blocks)) == ParallelPlan(
        units=("embed", *(f"blocks.{key}" for key in keys)), tail=("norm", "head")
    )


def test_without_a_head_the_embedding_stays_unsharded_since_its_weight_may_be_the_head():
    assert resolve_plan(Net(has_head=False)) == ParallelPlan(units=("blocks.0", "blocks.1"), tail=("norm",))


def test_a_model_that_repeats_nothing_is_one_unit():
    assert resolve_plan(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))) == ParallelPlan()


def test_layers_of_torch_are_no_blocks():
    heads = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    assert resolve_plan(nn.Sequential(heads)).units == ()


def test_blocks_of_one_class_are_found_among_other_layers():
    model = nn.Sequential(nn.Embedding(10, 4), Block(), nn.ReLU(), Block(), nn.Linear(4, 10))
    assert resolve_plan(model) == ParallelPlan(units=("0", "1", "3"), tail=("4",))


@pytest.mark.parametrize("blocks", [in_sequence, nn.ModuleList])
@pytest.mark.parametrize("stages", [in_sequence, nn.ModuleList])
def test_the_units_of_a_model_of_stages_are_the_blocks_in_them(stages, blocks):
    model = Net(stages([Stage(4, blocks), Stage(8, blocks)]))
    names = [f"blocks.{stage}.blocks.{block}" for stage in range(2) for block in range(2)]
    assert resolve_plan(model).units == ("embed", *names)


def test_experts_belong_to_their_layer():
    assert resolve_plan(Net(nn.ModuleList([ExpertLayer(), ExpertLayer()]))).units == (
        "embed",
        "blocks.0",
        "blocks.1",
    )


def test_experts_belong_to_their_layer_where_layers_differ_in_class():
    layers = nn.ModuleList([DenseLayer(), ExpertLayer(), DenseLayer(), ExpertLayer()])
    assert resolve_plan(Net(layers)).units == ("embed", *(f"blocks.{number}" for number in range(4)))


def test_a_block_that_is_used_twice_is_one_unit():
    shared = Block()
    assert resolve_plan(Net(nn.ModuleList([shared, Block(), shared]))).units == (
        "embed",
        "blocks.0",
        "blocks.1",
    )


def test_a_stem_between_embedding_and_blocks_is_left_to_the_root():
    model = nn.ModuleDict(
        {"embed": nn.Embedding(4, 4), "stem": nn.Linear(4, 4), "body": nn.Sequential(Block(), Block())}
    )
    assert resolve_plan(model).units == ("body.0", "body.1")
