"""Curves through the numbers that runs printed, step by step or epoch by epoch."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.site.plots.sheet import GREY, Axes
from tools.site.recorded import Step

WIDE = {"color": "#cfd6de", "linewidth": 6, "marker": ""}
"""The style of a curve behind another one that hides it."""


def points(pattern: str, text: str) -> list[tuple[float, float]]:
    """Return the pairs of numbers that a pattern with two groups finds.

    Raises:
        ValueError: If it finds none: the example prints something else than its picture is drawn from.
    """
    found = [(float(x), float(y)) for x, y in re.findall(pattern, text)]
    if not found:
        raise ValueError(f"`{pattern}` is not in the output that the picture is drawn from:\n{text}")
    return found


@dataclass(frozen=True)
class Curve:
    """One curve.

    Args:
        label: What the legend calls it; nothing if empty.
        pattern: Finds its points in an output.
        step: Which of the commands printed it.
        style: Of matplotlib, such as ``{"linestyle": "--"}``.
    """

    label: str
    pattern: str
    step: int = 0
    style: dict[str, Any] = field(default_factory=dict)


def undisturbed(pattern: str, *, step: int) -> Curve:
    """Return the curve of a run without interruption, drawn wide and pale in the background."""
    return Curve("not interrupted", pattern, step, WIDE)


@dataclass(frozen=True)
class Curves:
    """A panel of curves.

    Args:
        mark: A pattern with one group: a vertical line is drawn there, with a text.
        level: A horizontal line, and its text.
        more: Of `Axes.set`, such as ``yscale`` or ``ylim``.
    """

    curves: Sequence[Curve]
    title: str
    xlabel: str
    ylabel: str
    mark: tuple[str, str] | None = None
    level: tuple[str, str] | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def __call__(self, axes: Axes, steps: Sequence[Step], folder: Path) -> None:
        for curve in self.curves:
            x, y = zip(*points(curve.pattern, steps[curve.step].output), strict=True)
            axes.plot(x, y, **{"marker": "o", "label": curve.label, **curve.style})
        text = "".join(step.output for step in steps)
        if self.mark is not None:
            place = number(self.mark[0], text)
            axes.axvline(place, color=GREY, linestyle="--", linewidth=1)
            axes.annotate(
                self.mark[1], (place, 0.97), (5, 0), xycoords=("data", "axes fraction"),
                textcoords="offset points", va="top", color="#555555", fontsize=9,
            )  # fmt: skip
        if self.level is not None:
            axes.axhline(
                number(self.level[0], text), color=GREY, linestyle="--", linewidth=1, label=self.level[1]
            )
        finish(axes, title=self.title, xlabel=self.xlabel, ylabel=self.ylabel, **self.more)


def number(pattern: str, text: str) -> float:
    """Return the number that a pattern with one group finds first.

    Raises:
        ValueError: If it finds none.
    """
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"`{pattern}` is not in the output that the picture is drawn from:\n{text}")
    return float(found[1])


@dataclass(frozen=True)
class Logged:
    """A panel with a curve from the log of the JSONL tracker."""

    metric: str
    title: str
    xlabel: str = "step"
    more: dict[str, Any] = field(default_factory=dict)

    def __call__(self, axes: Axes, steps: Sequence[Step], folder: Path) -> None:
        rows = [row for file in folder.glob("runs/**/*.jsonl") for row in rows_of(file)]
        logged = sorted(
            (row["step"], row["values"][self.metric]) for row in rows if self.metric in row["values"]
        )
        axes.plot(*zip(*logged, strict=True), marker="")
        finish(axes, title=self.title, xlabel=self.xlabel, ylabel=self.metric, **self.more)


def rows_of(log: Path) -> list[dict[str, Any]]:
    """Return the rows of a log that have a step."""
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row.get("step") is not None]


def finish(axes: Axes, **labels: Any) -> None:
    """Label axes; add a legend if a curve has a label; count steps and epochs in whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.set(**labels)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if any(axes.get_legend_handles_labels()[1]):
        axes.legend(fontsize=9)
