from __future__ import annotations

from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from accel.plan_report.picture import as_svg
from accel_backends import resolve_plan
from accel_backends.plans.memory import plan_memory

SVG = "{http://www.w3.org/2000/svg}"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6, bias=False)


def picture(model, **kwargs):
    return ElementTree.fromstring(as_svg(plan_memory(model, resolve_plan(model), **kwargs), name="<net>"))


def bars(root):
    """Return the widths of the rectangles of each row, from the top."""
    rows = {}
    for box in root.iter(f"{SVG}rect"):
        if "x" in box.attrib:
            rows.setdefault(float(box.get("y")), []).append(float(box.get("width")))
    return [rows[top] for top in sorted(rows)]


def test_each_unit_is_a_bar_cut_into_its_shards():
    model = nn.Sequential(Block(), Block(), nn.Linear(6, 12, bias=False))
    blocks, tail, alone, largest, legend = bars(picture(model, num_shards=4))
    # Six rows on four ranks: 2, 2, 2 and none; twelve rows: three each.
    assert blocks == pytest.approx([66.67, 66.67, 66.67, 0], abs=0.01)
    assert tail == pytest.approx([100] * 4)
    assert alone == pytest.approx([100, 100, 200])
    assert sum(largest) == pytest.approx(400 * (2 * 12 + 18) / (2 * 36 + 72), abs=0.1)
    assert len(legend) == 3


def test_a_unit_on_more_ranks_than_can_be_drawn_shows_the_first_and_the_others():
    model = nn.Sequential(nn.Linear(4, 1000, bias=False))
    first, *_ = bars(picture(model, num_shards=100))
    assert first == pytest.approx([4, 396])


def test_what_every_rank_holds_is_drawn_once():
    class Scaled(Block):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))

    first, *_ = bars(picture(nn.Sequential(Scaled(), Scaled()), num_shards=3))
    assert sum(first) == pytest.approx(400, abs=0.1)


def test_names_are_text_and_no_markup():
    texts = [text.text for text in picture(nn.Sequential(Block(), Block()), num_shards=2).iter(f"{SVG}text")]
    assert texts[0] == "<net> on 2 ranks"
    assert "0 … 1 (2 units)" in texts
    assert "144 bytes → 72 bytes" in texts
