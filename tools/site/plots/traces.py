"""The timeline of a profile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tools.site.plots.sheet import BLUE, GREEN, GREY, ORANGE, Axes
from tools.site.recorded import Step

KINDS = (
    ("ProfilerStep", "step", GREY, 0),
    ("Optimizer.", "optimizer", GREEN, 1),
    ("autograd::engine", "backward", ORANGE, 2),
    ("aten::", "operators", BLUE, 3),
)
"""Prefixes of event names, with their kind, color and row."""


def timeline(axes: Axes, steps: Sequence[Step], folder: Path) -> None:
    """Draw the events of the first trace that a run left: a row for each kind."""
    trace = min(folder.glob("runs/**/profile_0*.json"), key=lambda file: file.name)
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("ph") == "X"]
    start = min(event["ts"] for event in events if event["name"].startswith("ProfilerStep"))
    for prefix, label, colour, row in KINDS:
        spans = [
            ((event["ts"] - start) / 1000, event["dur"] / 1000)
            for event in events
            if event["name"].startswith(prefix) and event["ts"] >= start
        ]
        axes.broken_barh(
            spans, (row - 0.35, 0.7), facecolors=colour, edgecolor="white", linewidth=0.3, label=label
        )
    axes.set_yticks(range(len(KINDS)), [label for _, label, _, _ in KINDS])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set(title="Three training steps of rank 0", xlabel="milliseconds")
