"""Run a model that is larger than the memory it may have, and draw where each of its layers lives.

    pip install matplotlib
    python docs/examples/big_model.py --picture runs/big_model.png

The model is built here, from code: a small transformer without weights, whose checkpoint is written first. Then the
memory is capped, the map is made, and it runs: other layers are read from the checkpoint, one layer ahead.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn

from accel_bigmodel import (
    compute_module_sizes,
    convert_bytes,
    convert_file_size_to_int,
    infer_auto_device_map,
    init_empty_weights,
    load_checkpoint_and_dispatch,
    save_model,
)
from accel_bigmodel.planning.device_maps import device_of

WIDTH, NUM_BLOCKS, VOCABULARY = 256, 12, 1000
LAYERS = ("embed", *(f"blocks.{number}" for number in range(NUM_BLOCKS)), "norm", "head")
PLACES = {"cpu": "in memory", "disk": "in the checkpoint"}


class Block(nn.Module):
    """Attention and a feed-forward part, both with a residual connection: it must not be split."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.forward_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x`` of shape ``(batch, tokens, WIDTH)``, changed."""
        inner = self.attention_norm(x)
        x = x + self.attention(inner, inner, inner, need_weights=False)[0]
        return x + self.feed_forward(self.forward_norm(x))


class Language(nn.Module):
    """A language model whose last layer shares the weights of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.embed.weight, std=WIDTH**-0.5)
        self.blocks = nn.ModuleList(Block() for _ in range(NUM_BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores of shape ``(batch, tokens, VOCABULARY)``."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    @torch.inference_mode()
    def generate(self, tokens: torch.Tensor, *, num_tokens: int) -> torch.Tensor:
        """Return ``tokens`` with more tokens, sampled from the model's scores; the same scores give the same sample."""
        chance = torch.Generator().manual_seed(0)
        for _ in range(num_tokens):
            likelihood = self(tokens)[:, -1].softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(likelihood, 1, generator=chance)], dim=1)
        return tokens


def main(words: list[str] | None = None) -> None:
    """Save, map, load, run, compare and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", default="20MiB", help="memory for weights (default 20MiB)")
    parser.add_argument("--picture", type=Path, help="where to draw the map")
    arguments = parser.parse_args(words)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        resident = Language().eval()
        save_model(resident, folder, max_shard_size="10MB")
        with init_empty_weights():
            model = Language().eval()
        sizes = compute_module_sizes(model)
        limits = {"cpu": arguments.memory}
        device_map = infer_auto_device_map(model, limits, no_split_module_classes=["Block"])
        place_of = {layer: str(device_of(f"{layer}.weight", device_map)) for layer in LAYERS}
        print_map(sizes, place_of, arguments.memory)
        before = sorted(Path(folder).iterdir())
        load_checkpoint_and_dispatch(model, folder, device_map=device_map)
        tokens = torch.randint(VOCABULARY, (1, 8))
        written = model.generate(tokens, num_tokens=12)
        assert torch.equal(written, resident.generate(tokens, num_tokens=12))
        assert sorted(Path(folder).iterdir()) == before
        print(f"It writes the tokens that the resident model writes: {written[0, 8:].tolist()}")
        print("Nothing was copied on disk.")
    if arguments.picture is not None:
        draw(sizes, place_of, arguments.picture)


def told_size(layer: str, sizes: dict[str, int]) -> str:
    """Return how large a layer is, in words."""
    return convert_bytes(sizes[layer]) if sizes.get(layer) else "the weights of embed"


def print_map(sizes: dict[str, int], place_of: dict[str, str], memory: str) -> None:
    """Print the device of each layer, in running order, and the totals."""
    limit = convert_bytes(convert_file_size_to_int(memory))
    print(f"{convert_bytes(sizes[''])} of weights; {limit} may be in memory at a time:")
    for layer, place in place_of.items():
        print(f"  {layer:<12}{PLACES[place]:<19}{told_size(layer, sizes)}")
    for place, told in PLACES.items():
        layers = [sizes.get(layer, 0) for layer in LAYERS if place_of[layer] == place]
        print(f"{convert_bytes(sum(layers))} {told}")
    print("The room left in memory is for a layer that is read when it runs.")


def draw(sizes: dict[str, int], place_of: dict[str, str], path: Path) -> None:
    """Draw a bar for each layer, as wide as its bytes, in the color of its device."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    colours = {"cpu": "#2a6f97", "disk": "#c77d0a"}
    figure, axes = plt.subplots(figsize=(7, 4.6), layout="constrained")
    for place, told in (("cpu", "in memory"), ("disk", "in the checkpoint,\nread one layer ahead")):
        layers = [layer for layer in LAYERS if place_of[layer] == place]
        bars = axes.barh(
            [LAYERS.index(layer) for layer in layers],
            [sizes.get(layer, 0) / 2**20 for layer in layers],
            color=colours[place],
            label=told,
        )
        labels = [told_size(layer, sizes) for layer in layers]
        axes.bar_label(bars, labels, padding=4, color=colours[place], fontsize=9)
    axes.set_yticks(range(len(LAYERS)), LAYERS)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xticks([])
    axes.set_title("Where each layer lives: the first at the top, as wide as its weights", fontsize=11)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
