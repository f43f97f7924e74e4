from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from accel.plan_report.mesh_picture import mesh_svg
from accel_state.mesh_layout import MeshLayout

SVG = "{http://www.w3.org/2000/svg}"
IN_THE_GUIDE = Path(__file__).parents[4] / "docs" / "images" / "mesh.svg"


def texts(picture):
    return [text.text for text in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def colours(picture):
    return [
        box.get("fill") for box in ElementTree.fromstring(picture).iter(f"{SVG}rect") if "x" in box.attrib
    ]


def test_the_picture_of_the_guide_is_the_one_that_the_code_draws():
    layout = MeshLayout(pp=2, dp_replicate=2, dp_shard=2, tp=2)
    assert IN_THE_GUIDE.read_text(encoding="utf-8") == mesh_svg(layout)


def test_ranks_of_a_row_read_the_same_batches():
    shown = texts(mesh_svg(MeshLayout(dp_replicate=2, dp_shard=2, tp=2)))
    row = shown.index("dp_replicate 1, dp_shard 0")
    assert shown[row + 1 : row + 5] == ["4", "tp 0", "5", "tp 1"]


def test_ranks_of_one_colour_hold_the_same_part():
    layout = MeshLayout(dp_replicate=2, dp_shard=2, tp=2)
    copies = colours(mesh_svg(layout))
    assert copies[:4] == copies[4:]
    assert len(set(copies)) == 4


def test_of_many_ranks_the_first_are_drawn():
    picture = mesh_svg(MeshLayout(dp_shard=512, tp=8))
    assert len(colours(picture)) == 64
    assert "… and 4032 more" in texts(picture)
