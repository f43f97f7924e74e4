"""Tables of numbers, as squares whose shade is the number."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from tools.site.plots.sheet import Axes
from tools.site.recorded import Step


def confusion(axes: Axes, steps: Sequence[Step], folder: Path) -> None:
    """Draw the confusion matrix that the last command printed."""
    found = re.search(r"confusion matrix (\[\[.*\]\])", steps[-1].output)
    if found is None:
        raise ValueError("no confusion matrix was printed")
    rows = ast.literal_eval(found[1])
    axes.imshow(rows, cmap="Blues", vmin=0, vmax=1.4 * max(map(max, rows)))
    for y, row in enumerate(rows):
        for x, count in enumerate(row):
            axes.text(x, y, count, ha="center", va="center", fontsize=14)
    names = ["malignant", "benign"]
    axes.set_xticks(range(2), names)
    axes.set_yticks(range(2), names)
    axes.grid(visible=False)
    axes.set(title="285 samples, each counted once", xlabel="predicted", ylabel="actual")
