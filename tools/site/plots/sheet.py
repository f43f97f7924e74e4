"""A picture: panels side by side, in the style of ``tools/site/matplotlibrc``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.site.recorded import Step

Axes = Any
"""Of matplotlib, which building the site does without."""
Panel = Callable[[Axes, Sequence[Step], Path], None]
"""Draws onto axes what some commands printed, or left in a folder."""

BLUE, ORANGE, GREEN, GREY = "#2a6f97", "#c77d0a", "#3d8b56", "#9aa5b1"


@dataclass(frozen=True)
class Sheet:
    """Panels side by side; calling it writes a picture of them.

    Args:
        panels: From left to right.
        size: Width and height in inches, of 120 pixels each.
        ratios: How wide the panels are; equally if empty.
    """

    panels: Sequence[Panel]
    size: tuple[float, float] = (7, 3)
    ratios: Sequence[float] = ()

    def __call__(self, steps: Sequence[Step], folder: Path, picture: Path) -> None:
        """Draw what ``steps`` printed and left in ``folder``; write it to ``picture``."""
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt

        widths = list(self.ratios or [1] * len(self.panels))
        figure, axes = plt.subplots(
            1, len(self.panels), figsize=self.size, squeeze=False, gridspec_kw={"width_ratios": widths}
        )
        for panel, place in zip(self.panels, axes.flat, strict=True):
            panel(place, steps, folder)
        figure.savefig(picture)
        plt.close(figure)
