"""Each cell of the page of the matrix equals one process, raises what the page says, or is wrong as it says.

A cell that is `untested` becomes tested by what the page is made to say of it.
"""

import re
from functools import cache

import matrix
import pytest
from reference_pages import tables_of

from accel_state.errors import AccelError
from tools.harness.device import on_cpu

_TWO_RANKS, _MORE_RANKS, *NOTES = tables_of("docs/reference/matrix.md")
CELLS = {feature: row | _MORE_RANKS[feature] for feature, row in _TWO_RANKS.items()}
TOLERANCES = {"bf16": 1e-2, "fp16": 1e-2, "Muon": 3e-2}  # Muon computes in bf16
pytestmark = pytest.mark.preload("accel.accelerator", "peft", "torch._inductor.compile_fx")
LIMIT_S = 180.0


def note_of(feature, axis):
    """Return what the page says of a cell that is not equal."""
    (note,) = [
        text
        for table in NOTES
        for cells, row in table.items()
        for text in row.values()
        if cells.partition(": ")[0] == feature and axis in cells.partition(": ")[2].split(", ")
    ]
    return note


def cells():
    for number, (feature, row) in enumerate(CELLS.items()):
        for place, (axis, cell) in enumerate(row.items()):
            if cell == "untested":
                continue
            # The plain suite has every third cell of two ranks and every ninth of more, some of each axis and feature.
            every = 3 if axis in _TWO_RANKS[feature] else 9
            long = [pytest.mark.engine("long")] if (number + place) % every else []
            marks = [pytest.mark.engine("deepspeed")] if "DeepSpeed" in axis else long
            if cell == "wrong":
                ends = "DeepSpeed" in axis  # gloo ends the process
                marks.append(pytest.mark.xfail(reason=note_of(feature, axis), strict=True, run=not ends))
            yield pytest.param(axis, feature, id=f"{axis}, {feature.replace('`', '')}", marks=marks)


@cache
def trained_alone(world, feature, num_data_ranks, has_experts, device):
    return world.run(matrix.train_alone, feature, num_data_ranks, has_experts, device, timeout_s=LIMIT_S)[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("axis", "feature"), list(cells()))
def test_a_cell_is_as_the_page_says(world, device, tmp_path, axis, feature):
    column = matrix.AXES[axis]
    ranks = world(column.num_ranks)
    if CELLS[feature][axis] == "error" and (feature != "fp16" or on_cpu()):
        with pytest.raises(AccelError, match=re.escape(note_of(feature, axis))):
            ranks.run(matrix.run, axis, feature, device, tmp_path, timeout_s=LIMIT_S)
        return
    has_experts = "ep_size" in column.sizes
    expected = trained_alone(world(1), feature, column.num_data_ranks, has_experts, device)
    found = ranks.run(matrix.run, axis, feature, device, tmp_path, timeout_s=LIMIT_S)[0]
    tolerance = TOLERANCES.get(feature, 1e-5 if on_cpu() else 1e-4)
    tolerance *= 3 if column.zero_stage and feature == "bf16" else 1  # no autocast: in bf16 alone
    apart = dict(matrix.differences(found, expected))
    assert max(apart.values()) <= tolerance, apart


def test_the_page_has_each_axis_and_feature():
    assert list(CELLS) == list(matrix.FEATURES)
    assert {tuple(row) for row in CELLS.values()} == {tuple(matrix.AXES)}
    assert {cell for row in CELLS.values() for cell in row.values()} <= {
        "equal",
        "error",
        "wrong",
        "untested",
    }
    noted = {
        (cells.partition(": ")[0], axis)
        for table in NOTES
        for cells in table
        for axis in cells.partition(": ")[2].split(", ")
    }
    assert noted == {
        (f, axis) for f, row in CELLS.items() for axis, cell in row.items() if cell in ("error", "wrong")
    }
