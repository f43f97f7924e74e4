"""Tokens per second of a language model in shards, one process per device: `fully_shard` by hand, or through accel."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Size:
    """Sizes of the model and of what it reads.

    Args:
        width: Features of a token.
        num_blocks: Transformer blocks.
        num_heads: Of attention.
        vocabulary: Tokens that there are.
        length: Tokens in a sequence.
        batch: Sequences per rank.
        num_steps: Steps that are timed, after as many that are not.
        backend: Of `torch.compile`.
    """

    width: int
    num_blocks: int
    num_heads: int
    vocabulary: int
    length: int
    batch: int
    num_steps: int
    backend: str = "inductor"


ONE_BILLION = Size(2048, 16, 16, 32_000, length=2048, batch=2, num_steps=20)
"""0.94 billion parameters."""
TINY = Size(32, 2, 2, 50, length=8, batch=2, num_steps=2, backend="eager")
"""To see that it runs."""


class Block(nn.Module):
    """Attention and feed-forward."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.num_heads = size.num_heads
        self.norm_in, self.norm_out = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.mixed = nn.Linear(size.width, 3 * size.width, bias=False)
        self.joined = nn.Linear(size.width, size.width, bias=False)
        self.up = nn.Linear(size.width, 4 * size.width, bias=False)
        self.down = nn.Linear(4 * size.width, size.width, bias=False)

    def forward(self, rows: Tensor) -> Any:
        """Return the next hidden states, ``(batch, length, width)``."""
        heads = self.mixed(self.norm_in(rows)).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        queries, keys, values = heads
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        rows = rows + self.joined(attended.transpose(1, 2).flatten(2))
        grown = nn.functional.gelu(self.up(self.norm_out(rows)))
        return rows + self.down(grown)


class Model(nn.Module):
    """A language model."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.num_blocks))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Any:
        """Return the logits of ``(batch, length)`` tokens."""
        rows = self.embed(tokens)
        for block in self.blocks:
            rows = block(rows)
        return self.head(self.norm(rows))


def measured(variant: str, size: Size, *, num_ranks: int, device_type: str) -> float:
    """Return the tokens per second of all ranks together, of ``variant``: "raw" or "ours"."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawning = multiprocessing.get_context("spawn")
    found: multiprocessing.SimpleQueue[float] = spawning.SimpleQueue()
    ranks = [
        spawning.Process(target=_rank, args=(rank, variant, size, num_ranks, device_type, port, found))
        for rank in range(num_ranks)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if any(process.exitcode for process in ranks):
        raise RuntimeError(f"`{variant}` failed; its messages are above.")
    return found.get()


def _rank(
    rank: int,
    variant: str,
    size: Size,
    num_ranks: int,
    device_type: str,
    port: int,
    found: multiprocessing.SimpleQueue[float],
) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    speed = speed_on_this_rank(variant, size, device_type=device_type)
    if rank == 0:
        found.put(speed)


def speed_on_this_rank(variant: str, size: Size, *, device_type: str) -> float:
    """Return the tokens per second of all ranks together; every rank that the variables tell of must call it."""
    torch.manual_seed(0)
    is_cuda = device_type == "cuda"
    device = (
        torch.device(device_type, int(os.environ["LOCAL_RANK"])) if is_cuda else torch.device(device_type)
    )
    model, optimizer, backward = _PREPARED[variant](Model(size), size, device)
    tokens = torch.randint(size.vocabulary, (size.batch, size.length), device=device)

    def steps() -> float:
        begun = time.perf_counter()
        for _ in range(size.num_steps):
            logits = model(tokens)
            backward(nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()))
            optimizer.step()
            optimizer.zero_grad()
        if device_type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begun

    steps()
    dist.barrier()
    speed = size.num_steps * dist.get_world_size() * tokens.numel() / steps()
    dist.destroy_process_group()
    return speed


def _raw(model: Model, size: Size, device: torch.device) -> tuple[Any, Any, Callable[[Tensor], None]]:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    options: dict[str, Any] = {
        "mesh": dist.device_mesh.init_device_mesh(device.type, (dist.get_world_size(),)),
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    }
    fully_shard(model.embed, **options)
    for block in model.blocks:
        block.forward = torch.compile(block.forward, backend=size.backend)
        fully_shard(block, **options)
    fully_shard([model.norm, model.head], reshard_after_forward=False, **options)
    fully_shard(model, reshard_after_forward=False, **options)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), Tensor.backward


def _ours(model: Model, size: Size, device: torch.device) -> tuple[Any, Any, Callable[[Tensor], None]]:
    from accel import Accelerator, FullyShardedDataParallelPlugin

    accelerator = Accelerator(
        cpu=device.type == "cpu",
        mixed_precision="bf16",
        dynamo_backend=size.backend,
        fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2),
    )
    prepared, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    return prepared, optimizer, accelerator.backward


_PREPARED = {"raw": _raw, "ours": _ours}
