"""Bars for the numbers that runs printed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.site.plots.sheet import BLUE, GREY, Axes
from tools.site.recorded import Step


@dataclass(frozen=True)
class Bars:
    """A panel of horizontal bars, from top to bottom.

    Args:
        pattern: Finds a label, a number, and perhaps more, in the output of all commands.
        colour: Returns the color of a bar from the pattern's match.
        told: Returns the text at the end of a bar.
        labels: What the bars are called, if not by the first thing that the pattern finds.
        target: Position of a vertical line.
        more: Of `Axes.set`.
    """

    pattern: str
    title: str
    xlabel: str
    colour: Callable[[Sequence[str]], str] = lambda found: BLUE
    told: Callable[[Sequence[str]], str] = lambda found: found[1]
    labels: Sequence[str] = ()
    target: float | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def __call__(self, axes: Axes, steps: Sequence[Step], folder: Path) -> None:
        text = "".join(step.output for step in steps)
        found = re.findall(self.pattern, text, flags=re.MULTILINE)
        if not found:
            raise ValueError(f"`{self.pattern}` is not in the output that the picture is drawn from:\n{text}")
        places = range(len(found))
        values = [float(match[1].replace(",", "")) for match in found]
        bars = axes.barh(places, values, height=0.62, color=[self.colour(match) for match in found])
        axes.bar_label(bars, [self.told(match) for match in found], padding=4, fontsize=9)
        axes.set_yticks(places, self.labels or [match[0] for match in found])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.16)
        if self.target is not None:
            axes.axvline(self.target, color=GREY, linestyle="--", linewidth=1)
        axes.set(title=self.title, xlabel=self.xlabel, **self.more)
