"""Train one small language model in every layout of its ranks, and draw all loss curves on top of each other.

    pip install matplotlib
    python docs/examples/every_axis.py --picture runs/every_axis.png    # all layouts, about a minute
    python docs/examples/every_axis.py --layouts tp2 pp2 --steps 20            # some of them

The script runs `accel launch` for each layout that it has not trained before, on the CPU, where all can
be compared. A table shows the distance of each curve from that of one process. With experts it
is another model, and another curve.
"""

import argparse
import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from accel import Accelerator, DataLoaderConfiguration, FullyShardedDataParallelPlugin, ParallelismConfig
from accel.utils import TorchContextParallelConfig, set_seed

LAYOUTS = {
    "one": {},
    "dp2": {"dp_replicate_size": 2},
    "fsdp2": {"dp_shard_size": 2},
    "tp2": {"tp_size": 2},
    "cp2": {"cp_size": 2},
    "sp2": {"sp_size": 2},
    "pp2": {"pp_size": 2},
    "tp2-fsdp2": {"tp_size": 2, "dp_shard_size": 2},
    "tp2-pp2": {"tp_size": 2, "pp_size": 2},
    "experts": {},
    "ep2": {"ep_size": 2},
}
WITH_EXPERTS = {"experts", "ep2"}  # these train a `Mixture`
SETTINGS = {
    "cp2": {"cp_handler": TorchContextParallelConfig(cuts_batches=True)},
    "sp2": {"sp_backend": "torch"},
}
VOCABULARY = 256  # a token is a byte
LENGTH = 32
BATCH = 8  # rows of all ranks together
MODULES = ("calendar", "configparser", "csv", "difflib", "textwrap")


class Attention(nn.Module):
    """Causal attention over the heads that the layers leave this rank."""

    def __init__(self, width: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return ``hidden`` of shape ``(batch, tokens, width)``, mixed."""
        query, key, value = (
            layer(hidden).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a feed-forward part, both with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm, self.forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, head_dim=8)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return ``hidden`` of shape ``(batch, tokens, width)``, changed."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        return hidden + self.feed(self.forward_norm(hidden))

    def feed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return what the feed-forward part adds."""
        return self.down(F.gelu(self.up(hidden)))


class Experts(nn.Module):
    """Small networks, stacked in two parameters; each token uses some of them."""

    def __init__(self, num_experts: int, width: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(num_experts, 2 * width, width) / width**0.5)
        self.down = nn.Parameter(torch.randn(num_experts, width, 2 * width) / (2 * width) ** 0.5)

    def forward(self, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the weighted sums: ``hidden`` is ``(tokens, width)``, the others are ``(tokens, choices)``."""
        outputs = torch.zeros_like(hidden)
        for number, (up, down) in enumerate(zip(self.up, self.down, strict=True)):
            token, choice = torch.where(chosen == number)
            rows = F.linear(F.gelu(F.linear(hidden[token], up)), down)
            outputs = outputs.index_add(0, token, rows * weights[token, choice, None])
        return outputs


class ExpertBlock(Block):
    """A block whose feed-forward part are experts, two of four for each token."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        del self.up, self.down
        self.router, self.experts = nn.Linear(width, 4, bias=False), Experts(4, width)

    def feed(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return what the experts add."""
        tokens = hidden.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(2)
        return self.experts(tokens, chosen, weights).view_as(hidden)


class Language(nn.Module):
    """A small language model of bytes, and its parallel plan."""

    parallel_plan: ClassVar = {
        "units": ["blocks.*"],
        "tail": ["norm", "head"],
        "attention": ["blocks.*.attention"],
        "tensor": {
            "embed": "embedding_rowwise",
            "blocks.*.attention.query": "colwise",
            "blocks.*.attention.key": "colwise",
            "blocks.*.attention.value": "colwise",
            "blocks.*.attention.out": "rowwise",
            "blocks.*.up": "colwise",
            "blocks.*.down": "rowwise",
            "head": "colwise_gather_output",
        },
    }

    block: ClassVar = Block

    def __init__(self, width: int = 32, num_blocks: int = 2) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(self.block(width) for _ in range(num_blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Return scores ``(batch, tokens, VOCABULARY)`` of the next token, at each token."""
        hidden = self.embed(input_ids) + self.positions(position_ids)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


class Mixture(Language):
    """The same with experts, which ranks share."""

    parallel_plan: ClassVar = {
        "units": ["blocks.*"],
        "tail": ["norm", "head"],
        "experts": {"blocks.*.experts": "ep_dispatch_experts"},
    }
    block: ClassVar = ExpertBlock


class Sources(Dataset):
    """The sources of some modules of the standard library, as rows of ``LENGTH + 1`` bytes."""

    def __init__(self) -> None:
        files = [importlib.util.find_spec(name).origin for name in MODULES]
        text = bytearray(b"".join(Path(file).read_bytes() for file in files))
        self.rows = torch.frombuffer(text, dtype=torch.uint8).unfold(0, LENGTH + 1, LENGTH)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = self.rows[index].long()
        # No token refers to its neighbor, which another rank may have: labels are shifted, and positions are passed.
        return {"input_ids": row[:-1], "position_ids": torch.arange(LENGTH), "shift_labels": row[1:]}


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean loss of the next bytes."""
    scores = model(batch["input_ids"], position_ids=batch["position_ids"])
    return F.cross_entropy(scores.flatten(0, 1), batch["shift_labels"].flatten())


def train(layout: str, num_steps: int) -> tuple[Accelerator, list[float]]:
    """Return the mean loss of all ranks in each step. This loop is the same in every layout."""
    sizes = LAYOUTS[layout]
    accelerator = Accelerator(
        cpu=True,
        parallelism_config=ParallelismConfig(**SETTINGS.get(layout, {}), **sizes) if sizes else None,
        fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2) if "dp_shard_size" in sizes else None,
        dataloader_config=DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True),
        scheduler_unit="optimizer_step",
    )
    set_seed(0)
    model = Mixture() if layout in WITH_EXPERTS else Language()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=num_steps)
    loader = DataLoader(Sources(), batch_size=BATCH, shuffle=True, drop_last=True)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    losses: list[float] = []
    while len(losses) < num_steps:
        for batch, _ in zip(loader, range(num_steps - len(losses)), strict=False):
            loss = accelerator.forward_backward(model, batch, loss_of)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(accelerator.reduce(loss, "mean").item())
    return accelerator, losses


def curve(layout: str, *, folder: Path, num_steps: int) -> list[float]:
    """Return the losses in one layout, trained on as many processes as it has, unless that has been done."""
    file = folder / f"{layout}.json"
    if not file.exists() or len(json.loads(file.read_text())) != num_steps:
        num_processes = math.prod(LAYOUTS[layout].values())
        words = [
            "launch",
            "--cpu",
            "--num_processes",
            str(num_processes),
            "--num_cpu_threads_per_process",
            "1",
        ]
        script = [__file__, "--layout", layout, "--project_dir", str(folder), "--steps", str(num_steps)]
        subprocess.run([sys.executable, "-m", "accel_launch", *words, *script], check=True)
    return json.loads(file.read_text())


def gaps(curves: dict[str, list[float]], layout: str) -> list[float]:
    """Return how far a curve is from that of the same model on one process, in each step."""
    alone = curves["experts" if layout in WITH_EXPERTS else "one"]
    return [abs(one - two) for one, two in zip(curves[layout], alone, strict=True)]


def report(curves: dict[str, list[float]]) -> None:
    """Print how far each curve is from that of one process."""
    print(f"{'layout':<12}{'ranks':>6}{'first loss':>12}{'last loss':>12}{'largest difference':>22}")
    for layout, losses in curves.items():
        difference = max(gaps(curves, layout))
        num_ranks = math.prod(LAYOUTS[layout].values())
        print(f"{layout:<12}{num_ranks:>6}{losses[0]:>12.4f}{losses[-1]:>12.4f}{difference:>22.1e}")


def draw(curves: dict[str, list[float]], picture: Path) -> None:
    """Draw the curves, each thinner than the one before, and below how far they are from that of one process."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 6), sharex=True, layout="constrained")
    colours = plt.get_cmap("viridis").resampled(len(curves))
    for number, (layout, losses) in enumerate(curves.items()):
        steps = range(1, len(losses) + 1)
        width = 1 + 1.5 * (len(curves) - 1 - number)
        above.plot(steps, losses, color=colours(number), linewidth=width, label=layout)
        if LAYOUTS[layout]:
            visible = [max(gap, 1e-9) for gap in gaps(curves, layout)]
            below.semilogy(steps, visible, color=colours(number), linewidth=1)
    above.set(ylabel="loss", title="One loop, every layout")
    above.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    below.set(xlabel="step", ylabel="from one process", ylim=(5e-10, 1))
    for axes in (above, below):
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train one model in every layout.")
    parser.add_argument(
        "--layouts", nargs="*", choices=LAYOUTS, default=list(LAYOUTS), help="beside one process"
    )
    parser.add_argument("--layout", choices=LAYOUTS, help="train in this one, as a process of a launch")
    parser.add_argument("--project_dir", type=Path, default=Path("runs/every_axis"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--picture", type=Path, help="where to draw the curves")
    args = parser.parse_args()

    if args.layout is not None:
        accelerator, losses = train(args.layout, args.steps)
        if accelerator.is_main_process:
            args.project_dir.mkdir(parents=True, exist_ok=True)
            (args.project_dir / f"{args.layout}.json").write_text(json.dumps(losses))
        accelerator.end_training()
        return
    wanted = {"one", *args.layouts, *(["experts"] if "ep2" in args.layouts else [])}
    chosen = [layout for layout in LAYOUTS if layout in wanted]
    curves = {layout: curve(layout, folder=args.project_dir, num_steps=args.steps) for layout in chosen}
    report(curves)
    if args.picture is not None:
        draw(curves, args.picture)


if __name__ == "__main__":
    main()
