from __future__ import annotations

from torch import nn

from accel.plan_report import plan_data, plan_text
from accel.planning.step import Step, planned_step
from accel_backends import resolve_plan
from accel_state import MeshLayout


class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layer = nn.Linear(width, width)


class Net(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 10)
        self.side = nn.Bilinear(2, 2, 2)


def table(model, **sizes):
    """Return the title and the first cells of the table."""
    layout = MeshLayout(**sizes)
    plan = resolve_plan(model, given={"tail": ["norm", "head"]})
    data = plan_data(planned_step(model, plan, layout, Step()), name="net", layout=layout)
    lines = plan_text(data).split("└")[0].splitlines()
    return lines[1].strip("│ "), [line.split("│")[1].rstrip() for line in lines[5:]]


def units(model):
    return [cell for cell in table(model, dp_shard=2)[1] if cell and not cell.startswith(" ")]


def test_equal_units_in_a_row_are_one_row():
    assert units(Net([Block(), Block(), Block(), Block(8), Block()])) == [
        "embed", "blocks.0 … 2 (3 units)", "blocks.3", "blocks.4", "norm + head", "everything else",
    ]  # fmt: skip


def test_units_that_are_trained_and_frozen_are_not_equal():
    model = Net([Block(), Block(), Block()])
    model.blocks[0].requires_grad_(False)
    assert units(model)[1:3] == ["blocks.0", "blocks.1 … 2 (2 units)"]


def test_names_are_relative_to_a_unit_of_one_module():
    _, cells = table(Net([Block(), Block()]), dp_shard=2)
    assert [cell.strip() for cell in cells if cell.startswith(" ")] == [
        "weight", "layer.weight", "layer.bias", "norm.weight", "norm.bias", "head.weight", "head.bias",
        "side.weight", "side.bias",
    ]  # fmt: skip


def test_the_title_has_the_layout():
    model = Net([Block()])
    assert table(model, dp_shard=1)[0] == "`net` on one rank"
    assert table(model, dp_shard=4, dp_replicate=2)[0] == "`net` on dp_replicate 2 × dp_shard 4"
