import pytest
from PIL import Image

from tools.site.plots.curves import Curve, Curves, points
from tools.site.plots.sheet import Sheet
from tools.site.recorded import Step

LOSS = Curves([Curve("loss", r"step (\d+): loss ([\d.]+)")], "Title", "step", "loss")


def test_a_curve_is_drawn_from_what_was_printed(tmp_path):
    Sheet([LOSS])([Step("one", "step 1: loss 3\nstep 2: loss 1\n")], tmp_path, tmp_path / "one.png")
    with Image.open(tmp_path / "one.png") as picture:
        assert len(picture.getcolors(picture.width * picture.height)) > 2


def test_an_output_without_points_is_refused():
    with pytest.raises(ValueError, match="is not in the output that the picture is drawn from"):
        points(r"step (\d+): loss ([\d.]+)", "nothing")
