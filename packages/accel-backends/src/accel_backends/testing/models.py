"""Small models with what makes sharding hard: odd sizes, ties, buffers, frozen parts, dropout, no repetition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """One residual layer."""

    def __init__(self, width: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, rows: Tensor) -> Any:
        """Return the outputs for ``(batch, features)``."""
        return rows + self.dropout(self.down(torch.tanh(self.up(self.norm(rows)))))


class Odd(nn.Module):
    """Sizes that no number of ranks divides."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(7, 33)
        self.blocks = nn.ModuleList(Block(33, 50, dropout) for _ in range(3))
        self.norm = nn.LayerNorm(33)
        self.head = nn.Linear(33, 1)

    def forward(self, rows: Tensor) -> Any:
        """Return the outputs for ``(batch, features)``."""
        rows = self.first(rows)
        for block in self.blocks:
            rows = block(rows)
        return self.head(self.norm(rows))


class Tied(nn.Module):
    """A language model whose embedding is its head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(19, 10)
        self.blocks = nn.ModuleList(Block(10, 13) for _ in range(2))
        self.norm = nn.LayerNorm(10)
        self.head = nn.Linear(10, 19, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, rows: Tensor) -> Any:
        """Return the outputs for ``(batch, features)``."""
        tokens = (rows.abs() * 100).long() % 19
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


class Buffered(nn.Module):
    """Buffers inside and outside of the state dict, one of them made at random."""

    mix: Tensor
    offset: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mix", torch.randn(7, 9))
        self.register_buffer("offset", torch.randn(9), persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.blocks = nn.ModuleList(Block(9, 5) for _ in range(2))
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, rows: Tensor) -> Any:
        """Return the outputs for ``(batch, features)``."""
        self.count += 1
        hidden = rows @ self.mix + self.offset
        for block in self.blocks:
            hidden = block(hidden)
        return hidden * self.scale


class Adapted(nn.Module):
    """A frozen model with small trained matrices beside its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Odd()
        self.base.requires_grad_(False)
        self.down = nn.ModuleList(nn.Linear(33, 2, bias=False) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(2, 33, bias=False) for _ in range(3))

    def forward(self, rows: Tensor) -> Any:
        """Return the outputs for ``(batch, features)``."""
        rows = self.base.first(rows)
        for block, down, up in zip(self.base.blocks, self.down, self.up, strict=True):
            rows = block(rows) + up(down(rows))
        return self.base.head(self.base.norm(rows))


class Attention(nn.Module):
    """Attention over as many heads as its projections leave this rank."""

    def __init__(self, width: int, head_dim: int, *, is_packed: bool = False) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.is_packed = is_packed
        if is_packed:
            self.packed = nn.Linear(width, 3 * width)
        else:
            self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Any:
        """Return the outputs for ``(batch, sequence, features)``."""
        projected = (
            self.packed(hidden).chunk(3, -1)
            if self.is_packed
            else (layer(hidden) for layer in (self.query, self.key, self.value))
        )
        query, key, value = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in projected)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class SharedBlock(nn.Module):
    """One layer of a transformer."""

    def __init__(self, dropout: float, *, is_packed: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(12)
        self.attention = Attention(12, head_dim=3, is_packed=is_packed)
        self.rows = Block(12, 20, dropout)

    def forward(self, hidden: Tensor) -> Any:
        """Return the outputs for ``(batch, sequence, features)``."""
        return self.rows(hidden + self.attention(self.norm(hidden)))


class Shared(nn.Module):
    """A language model with a plan by which ranks share its layers; none of them divides its vocabulary."""

    parallel_plan: ClassVar[dict[str, Any]] = {
        "units": ["blocks.*"],
        "tail": ["norm", "head"],
        "tensor": {
            "embed": "embedding_rowwise",
            "blocks.*.attention.query": "colwise",
            "blocks.*.attention.key": "colwise",
            "blocks.*.attention.value": "colwise",
            "blocks.*.attention.out": "rowwise",
            "blocks.*.rows.up": "colwise",
            "blocks.*.rows.down": "rowwise",
            "head": "colwise_gather_output",
        },
    }

    def __init__(self, *, is_tied: bool = False, is_packed: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(19, 12)
        self.blocks = nn.ModuleList(SharedBlock(dropout, is_packed=is_packed) for _ in range(2))
        self.norm = nn.LayerNorm(12)
        self.head = nn.Linear(12, 19, bias=not is_tied)
        if is_tied:
            self.head.weight = self.embed.weight

    def forward(self, rows: Tensor) -> Any:
        """Return the outputs for ``(batch, features)``."""
        hidden = self.embed((rows.abs() * 100).long() % 19)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


class SharedPacked(Shared):
    """Query, key and value from one layer; the head shares the weight of the embedding, and so is cut with it."""

    parallel_plan: ClassVar[dict[str, Any]] = {
        **Shared.parallel_plan,
        "tensor": {
            "embed": "embedding_rowwise",
            "blocks.*.attention.packed": "packed_qkv_colwise",
            "blocks.*.attention.out": "rowwise",
            "blocks.*.rows.up": "colwise",
            "blocks.*.rows.down": "rowwise",
        },
    }

    def __init__(self) -> None:
        super().__init__(is_packed=True, is_tied=True)


class SharedSequence(Shared):
    """Between layers each rank has a part of every sequence, of 6 tokens."""

    parallel_plan: ClassVar[dict[str, Any]] = {
        **Shared.parallel_plan,
        "tensor": {
            "embed": "embedding_rowwise_sequence",
            "blocks.*.norm": "sequence_parallel",
            "blocks.*.attention.query": "colwise_sequence",
            "blocks.*.attention.key": "colwise_sequence",
            "blocks.*.attention.value": "colwise_sequence",
            "blocks.*.attention.out": "rowwise_sequence",
            "blocks.*.rows.norm": "sequence_parallel",
            "blocks.*.rows.up": "colwise_sequence",
            "blocks.*.rows.down": "rowwise_sequence",
            "norm": "sequence_parallel",
            "head": "colwise_gather_output_sequence",
        },
    }

    def forward(self, rows: Tensor) -> Any:
        """Return the outputs for ``(batch, features)``."""
        return super().forward(rows[:, :6])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "odd": Odd,
    "tied": Tied,
    "buffered": Buffered,
    "adapted": Adapted,
    "dropout": lambda: Odd(0.3),
    "shared": Shared,
    "shared-tied": lambda: Shared(is_tied=True),
    "shared-packed": SharedPacked,
    "shared-sequence": SharedSequence,
    "shared-dropout": lambda: Shared(dropout=0.3),
}


def make_model(name: str, *, seed: int = 7, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a new model, the same for the same seed; draws from torch's global generator."""
    torch.manual_seed(seed)
    return MODELS[name]().to(dtype)


def make_batches(num: int, *, rows: int = 4, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Return batches of shape ``(rows, 7)``, the same in every process."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(rows, 7, generator=generator, dtype=dtype) for _ in range(num)]
