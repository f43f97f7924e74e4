"""Train 50 steps in 8 bits and in bf16 on one GPU, and compare losses, tokens per second and memory.

    python -m tools.gpu.fp8 --backend TE                      Transformer Engine, delayed scaling
    python -m tools.gpu.fp8 --backend TE --scaling block      Transformer Engine, 128 values or 128 by 128
    python -m tools.gpu.fp8 --backend TE --scaling mxfp8      Transformer Engine on Blackwell
    python -m tools.gpu.fp8 --backend AO --recipe rowwise     torchao
    python -m tools.gpu.fp8 --backend AO --cpu --small        the same code on a CPU, in seconds: figures mean nothing

It fails where no layer is converted, where the losses lie further apart than `--distance`, and where the weights do not
load into the plain model.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from accel import Accelerator
from accel_backends import AORecipeKwargs, TERecipeKwargs
from accel_ops import set_seed
from accel_state import AcceleratorState
from accel_state.kwargs_handler import KwargsHandler

NUM_STEPS = 50
NUM_WARM = 10
VOCABULARY = 4096


@dataclass(frozen=True)
class Size:
    """How large the model and its batches are."""

    width: int = 4096
    num_layers: int = 4
    num_heads: int = 32
    num_tokens: int = 2048
    batch_size: int = 4


SMALL = Size(width=64, num_layers=2, num_heads=4, num_tokens=32, batch_size=4)


class Block(nn.Module):
    """Attention and a feed-forward part, of plain linear layers and layer norms."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.num_heads = size.num_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.up, self.down = nn.Linear(size.width, 4 * size.width), nn.Linear(4 * size.width, size.width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return ``(batch, tokens, width)`` from the same."""
        batch, tokens, width = hidden.shape
        heads = self.qkv(self.norm_1(hidden)).view(batch, tokens, 3, self.num_heads, -1).transpose(1, 3)
        queries, keys, values = heads.unbind(2)
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        wider: torch.Tensor = self.down(F.gelu(self.up(self.norm_2(hidden))))
        return hidden + wider


class Network(nn.Module):
    """From ``(batch, tokens)`` to ``(batch, tokens, vocabulary)`` scores."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, size.width)
        self.first = nn.Linear(size.width, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.num_layers))
        self.head = nn.Linear(size.width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next token at each place."""
        hidden: torch.Tensor = self.first(self.embedding(tokens))
        for block in self.blocks:
            hidden = block(hidden)
        scores: torch.Tensor = self.head(hidden)
        return scores


@dataclass(frozen=True)
class Outcome:
    """What one run came to."""

    losses: list[float]
    tokens_per_s: float
    peak_bytes: int
    layers: int


def train(precision: str, handlers: list[KwargsHandler], size: Size, *, cpu: bool, compiled: bool) -> Outcome:
    """Train on sequences that count up, each with a step of its own."""
    AcceleratorState._reset_state(reset_partial_state=True)
    set_seed(0)
    accelerator = Accelerator(
        cpu=cpu,
        mixed_precision=precision,
        kwargs_handlers=handlers,
        dynamo_backend="inductor" if compiled else "no",
    )
    if not cpu:
        torch.cuda.reset_peak_memory_stats()
    model = Network(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model, optimizer = accelerator.prepare(model, optimizer)
    start = torch.arange(size.batch_size, device=accelerator.device)[:, None]
    places = torch.arange(size.num_tokens + 1, device=accelerator.device)[None]
    losses, began = [], 0.0
    for step in range(NUM_STEPS):
        if step == NUM_WARM:
            wait(accelerator)
            began = time.perf_counter()
        tokens = (start * 7 + places * (1 + start % 3) + step) % VOCABULARY
        scores = model(tokens[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    wait(accelerator)
    seconds = time.perf_counter() - began
    plain = Network(size)
    plain.load_state_dict(accelerator.get_state_dict(model))
    num_tokens = (NUM_STEPS - NUM_WARM) * size.batch_size * size.num_tokens
    kinds = [type(module).__module__.partition(".")[0] for module in model.modules()]
    return Outcome(
        [loss.item() for loss in losses],
        num_tokens / seconds,
        0 if cpu else torch.cuda.max_memory_allocated(),
        sum(kind in ("torchao", "transformer_engine") for kind in kinds),
    )


def wait(accelerator: Accelerator) -> None:
    """Wait until the device has done what it was given."""
    if accelerator.device.type == "cuda":
        torch.cuda.synchronize()


def main(arguments: list[str] | None = None) -> int:
    """Run both and print a table; return 1 if they lie too far apart."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=["TE", "AO"], required=True)
    parser.add_argument(
        "--scaling", choices=["delayed", "current", "block", "mxfp8"], default="delayed", help="of TE"
    )
    parser.add_argument("--recipe", default="tensorwise", help="of torchao")
    parser.add_argument("--compiled", action="store_true", help="compile both with inductor")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument(
        "--distance", type=float, default=0.1, help="between the mean losses of the last 10 steps"
    )
    args = parser.parse_args(arguments)
    size = SMALL if args.small else Size()
    handler = (
        TERecipeKwargs(scaling=args.scaling) if args.backend == "TE" else AORecipeKwargs(config=args.recipe)
    )
    runs = {
        "bf16": train("bf16", [], size, cpu=args.cpu, compiled=args.compiled),
        "fp8": train("fp8", [handler], size, cpu=args.cpu, compiled=args.compiled),
    }
    print(f"{'':6}{'first loss':>12}{'last 10':>10}{'tokens/s':>12}{'peak GiB':>10}{'8-bit layers':>14}")
    for name, run in runs.items():
        last = sum(run.losses[-10:]) / 10
        print(
            f"{name:6}{run.losses[0]:12.4f}{last:10.4f}{run.tokens_per_s:12.0f}{run.peak_bytes / 2**30:10.2f}"
            f"{run.layers:14}"
        )
    distance = abs(sum(runs["fp8"].losses[-10:]) - sum(runs["bf16"].losses[-10:])) / 10
    print(f"distance {distance:.4f}, at most {args.distance}")
    return int(distance > args.distance or not runs["fp8"].layers)


if __name__ == "__main__":
    sys.exit(main())
