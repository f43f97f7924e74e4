"""Run a model that is larger than the memory it may have, and draw where each of its layers lives.

    python docs/examples/big_model.py --picture docs/images/big_model.png

The model is built here, from code: a small transformer without weights, whose checkpoint is written first. Then the
memory is capped, the map is made, and it runs: what has no room in memory is read from the checkpoint, one layer ahead.
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
    infer_auto_device_map,
    init_empty_weights,
    load_checkpoint_and_dispatch,
    save_model,
)
from accel_bigmodel.device_maps import device_of

WIDTH, NUM_BLOCKS, VOCABULARY = 256, 12, 1000


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
        """Return ``tokens`` with the likeliest next ones."""
        for _ in range(num_tokens):
            tokens = torch.cat([tokens, self(tokens)[:, -1:].argmax(-1)], dim=1)
        return tokens


def main(words: list[str] | None = None) -> None:
    """Save, map, load, run, compare and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory", default="20MB", help="memory for weights (default 20MB)")
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
        print(f"{convert_bytes(sizes[''])} of weights, {arguments.memory} of memory")
        for name, device in device_map.items():
            print(f"  {name:<12}{device!s:<6}{convert_bytes(sizes.get(name, 0)):>12}")
        before = sorted(Path(folder).iterdir())
        load_checkpoint_and_dispatch(model, folder, device_map=device_map)
        tokens = torch.randint(VOCABULARY, (1, 8))
        written = model.generate(tokens, num_tokens=12)
        assert torch.equal(written, resident.generate(tokens, num_tokens=12))
        assert sorted(Path(folder).iterdir()) == before
        print(f"It writes what the resident model writes: {written[0, 8:].tolist()}")
        print("Nothing was copied on disk.")
    if arguments.picture is not None:
        draw(sizes, device_map, arguments.picture)


def draw(sizes: dict[str, int], device_map: dict[str, int | str], path: Path) -> None:
    """Draw a bar for each layer, as wide as its bytes, in the colour of the place where it lives."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    layers = ["embed", *(f"blocks.{number}" for number in range(NUM_BLOCKS)), "norm", "head"]
    colours = {"cpu": "#2a6f97", "disk": "#e09f3e"}
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    places = [str(device_of(f"{layer}.weight", device_map)) for layer in layers]
    axes.barh(
        layers, [sizes.get(layer, 0) / 2**20 for layer in layers], color=[colours[place] for place in places]
    )
    axes.invert_yaxis()
    axes.set_xlabel("MiB of weights (the head shares those of the embedding)")
    axes.set_title("Where each layer lives")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in colours.values()]
    axes.legend(
        handles, ["in memory", "in the checkpoint, read one layer ahead"], loc="lower right", frameon=False
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
