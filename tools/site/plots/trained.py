"""Pictures of the predictions of models that examples have saved."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tools.site.plots.sheet import Axes
from tools.site.recorded import Step
from tools.workspace import ROOT

COLUMNS = 64
"""Characters in a line of drawn text."""


@contextmanager
def examples_on_path() -> Iterator[None]:
    """Make modules of ``docs/examples`` importable."""
    folder = str(ROOT / "docs" / "examples")
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def misread_digits(axes: Axes, steps: Sequence[Step], folder: Path) -> None:
    """Draw the held-out scans that the saved model of ``digits.py`` gets wrong, at most 16 of them."""
    import torch
    from safetensors.torch import load_file

    with examples_on_path():
        example = importlib.import_module("digits")
    model = example.network()
    model.load_state_dict(load_file(folder / "runs" / "digits" / "model.safetensors"))
    images, labels = example.digits()[1].tensors
    with torch.no_grad():
        guesses = model(images).argmax(dim=1)
    wrong = (guesses != labels).nonzero().flatten().tolist()[:16]
    for place, number in enumerate(wrong):
        left, top = place % 8, place // 8
        axes.imshow(images[number, 0], cmap="gray_r", extent=(left + 0.1, left + 0.9, -top - 0.9, -top - 0.1))
        words = f"{int(labels[number])}, read as {int(guesses[number])}"
        axes.text(left + 0.5, -top - 0.95, words, ha="center", va="top", fontsize=8)
    axes.set(
        xlim=(0, min(len(wrong), 8)),
        ylim=(-1.2 * -(-len(wrong) // 8), 0),
        title="The held-out scans that it gets wrong",
    )
    axes.axis("off")


def text_by_probability(axes: Axes, steps: Sequence[Step], folder: Path) -> None:
    """Draw the text that ``generate_text.py`` wrote: the surer the model was of a byte, the darker its field."""
    import torch
    from safetensors.torch import load_file

    with examples_on_path():
        example = importlib.import_module("sharded")
    weights = load_file(folder / "runs" / "language" / "merged" / "model.safetensors")
    blocks = {name.split(".")[1] for name in weights if name.startswith("blocks.")}
    model = example.Language(width=weights["embed.weight"].shape[1], num_blocks=len(blocks)).eval()
    model.load_state_dict(weights)
    text = steps[-1].output.rstrip("\n").encode()[: example.LENGTH]
    tokens = torch.tensor([list(text)])
    with torch.no_grad():
        likelihood = model(tokens)[0].softmax(-1)
    sure = [0.0, *likelihood[range(len(text) - 1), tokens[0, 1:]].tolist()]
    line = column = 0
    for byte, share in zip(text.decode("ascii", "replace"), sure, strict=True):
        if byte == "\n" or column == COLUMNS:
            line, column = line + 1, 0
        if byte == "\n":
            continue
        axes.add_patch(_field(column, line, share))
        axes.text(column + 0.5, -line - 0.5, byte, ha="center", va="center", family="monospace", fontsize=9)
        column += 1
    axes.set(xlim=(0, COLUMNS), ylim=(-line - 1, 0), title="The darker, the surer the model was of the byte")
    axes.axis("off")


def _field(column: int, line: int, share: float) -> object:
    from matplotlib.patches import Rectangle

    return Rectangle((column, -line - 1), 1, 1, color="#2a6f97", alpha=0.6 * share, linewidth=0)
