"""Tokens per second of a language model in shards, one process per device: by hand on torch, or through accel.

Each rank has sequences of its own, or all ranks share each sequence.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
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
LONG = Size(2048, 8, 16, 8_000, length=8192, batch=1, num_steps=5)
"""0.44 billion parameters, for sequences of 8,192 to 65,536 tokens on a GPU of 80 GB."""
TINY = Size(32, 2, 2, 50, length=8, batch=2, num_steps=2, backend="eager")
"""To see that it runs."""


def _uncut(buffers: Sequence[Tensor]) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class Prepared:
    """What a variant trains with.

    Args:
        model: The model.
        optimizer: Its optimizer.
        backward: Called with the loss.
        cut: Gives the tensors in a list, in place, this rank's part of every sequence while its context is open.
        is_shared: Whether all ranks share each sequence.
    """

    model: Any
    optimizer: Any
    backward: Callable[[Tensor], None]
    cut: Callable[[Sequence[Tensor]], AbstractContextManager[None]] = _uncut
    is_shared: bool = False


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
    """Return the tokens per second of all ranks together, of ``variant``, a key of ``_PREPARED``."""
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
    prepared = _PREPARED[variant](Model(size), size, device)
    tokens = torch.randint(size.vocabulary, (size.batch, size.length), device=device)

    def steps() -> float:
        begun = time.perf_counter()
        for _ in range(size.num_steps):
            inputs, labels = tokens.clone(), tokens.clone()
            with prepared.cut([inputs, labels]):
                logits = prepared.model(inputs)
                prepared.backward(nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()))
            prepared.optimizer.step()
            prepared.optimizer.zero_grad()
        if device_type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begun

    steps()
    dist.barrier()
    num_readers = 1 if prepared.is_shared else dist.get_world_size()
    speed = size.num_steps * num_readers * tokens.numel() / steps()
    dist.destroy_process_group()
    return speed


def _raw(model: Model, size: Size, device: torch.device, *, compiles: bool = True) -> Prepared:
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
        if compiles:
            block.forward = torch.compile(block.forward, backend=size.backend)
        fully_shard(block, **options)
    fully_shard([model.norm, model.head], reshard_after_forward=False, **options)
    fully_shard(model, reshard_after_forward=False, **options)
    return Prepared(model, torch.optim.AdamW(model.parameters(), lr=1e-4), Tensor.backward)


def _raw_shared(model: Model, size: Size, device: torch.device) -> Prepared:
    from torch.distributed.tensor.experimental import context_parallel

    raw = _raw(model, size, device, compiles=False)
    mesh = dist.device_mesh.init_device_mesh(device.type, (dist.get_world_size(),))

    def cut(buffers: Sequence[Tensor]) -> AbstractContextManager[None]:
        dims = [1] * len(buffers)
        return context_parallel(
            mesh, buffers=list(buffers), buffer_seq_dims=dims, no_restore_buffers={*buffers}
        )

    return Prepared(raw.model, raw.optimizer, raw.backward, cut, is_shared=True)


def _ours(model: Model, size: Size, device: torch.device, *, is_shared: bool = False) -> Prepared:
    from accel import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig

    plan = {"units": ["blocks.*"], "tail": ["norm", "head"], "attention": ["blocks.*"]}
    accelerator = Accelerator(
        cpu=device.type == "cpu",
        mixed_precision="bf16",
        dynamo_backend="no" if is_shared else size.backend,
        fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2, parallel_plan=plan if is_shared else None),
        parallelism_config=ParallelismConfig(cp_size=int(os.environ["WORLD_SIZE"])) if is_shared else None,
    )
    prepared, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4))
    if not is_shared:
        return Prepared(prepared, optimizer, accelerator.backward)

    def cut(buffers: Sequence[Tensor]) -> AbstractContextManager[None]:
        return accelerator.maybe_context_parallel(list(buffers), [1] * len(buffers), {*buffers})

    return Prepared(prepared, optimizer, accelerator.backward, cut, is_shared=True)


_PREPARED: dict[str, Callable[[Model, Size, torch.device], Prepared]] = {
    "raw": _raw,
    "ours": _ours,
    "raw shared": _raw_shared,
    "ours shared": partial(_ours, is_shared=True),
}
