"""Small models with what makes sharding hard: odd sizes, ties, buffers, frozen parts, dropout, no repetition.

Most take ``(batch, features)``; those with attention make a sequence of tokens of each row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        return rows + self.dropout(self.down(torch.tanh(self.up(self.norm(rows)))))


class Chain(nn.Module):
    """A model whose parts run in the order in which they were made; lists of blocks one block after the other."""

    def forward(self, hidden: Tensor) -> Any:
        for part in self.children():
            for each in part if isinstance(part, nn.ModuleList) else [part]:
                hidden = each(hidden)
        return hidden


class Odd(Chain):
    """Sizes that no number of ranks divides."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(7, 33)
        self.blocks = nn.ModuleList(Block(33, 50, dropout) for _ in range(3))
        self.norm = nn.LayerNorm(33)
        self.head = nn.Linear(33, 1)


class Scaled(Odd):
    """What comes last has one value, which cannot be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, rows: Tensor) -> Any:
        return super().forward(rows) * self.scale


class Tied(Chain):
    """A language model whose embedding is its head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(19, 10)
        self.blocks = nn.ModuleList(Block(10, 13) for _ in range(2))
        self.norm = nn.LayerNorm(10)
        self.head = nn.Linear(10, 19, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, rows: Tensor) -> Any:
        return super().forward((rows.abs() * 100).long() % 19)


class Buffered(Chain):
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
        self.count += 1
        return super().forward(rows @ self.mix + self.offset) * self.scale


class Adapted(nn.Module):
    """A frozen model with small trained matrices beside its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Odd()
        self.base.requires_grad_(False)
        self.down = nn.ModuleList(nn.Linear(33, 2, bias=False) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(2, 33, bias=False) for _ in range(3))

    def forward(self, rows: Tensor) -> Any:
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

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Any:
        """Return the outputs for ``(batch, sequence, features)``, where each sees what ``mask`` says, or what was."""
        layers = () if self.is_packed else (self.query, self.key, self.value)
        projected = [layer(hidden) for layer in layers] or self.packed(hidden).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in projected)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None)
        return self.out(mixed.transpose(1, 2).flatten(2))


class SharedBlock(nn.Module):
    """One layer of a transformer."""

    def __init__(self, dropout: float, **attention: Any) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(12)
        self.attention = Attention(12, head_dim=3, **attention)
        self.rows = Block(12, 20, dropout)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Any:
        return self.rows(hidden + self.attention(self.norm(hidden), mask))


def _plan(
    *, projections: Sequence[str] = ("query", "key", "value"), colwise: str = "colwise", sequence: str = ""
) -> dict[str, str]:
    """Return how a transformer is split over ranks, with the styles of its projections."""
    return {
        "embed": f"embedding_rowwise{sequence}",
        **{f"blocks.*.attention.{name}": f"{colwise}{sequence}" for name in projections},
        "blocks.*.attention.out": f"rowwise{sequence}",
        "blocks.*.rows.up": f"colwise{sequence}",
        "blocks.*.rows.down": f"rowwise{sequence}",
    }


class Shared(Chain):
    """A language model with a plan by which ranks share its layers; none of them divides its vocabulary."""

    parallel_plan: ClassVar[dict[str, Any]] = {
        "units": ["blocks.*"],
        "tail": ["norm", "head"],
        "tensor": {**_plan(), "head": "colwise_gather_output"},
    }

    def __init__(self, *, is_tied: bool = False, dropout: float = 0.0, **attention: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(19, 12)
        self.blocks = nn.ModuleList(SharedBlock(dropout, **attention) for _ in range(2))
        self.norm = nn.LayerNorm(12)
        self.head = nn.Linear(12, 19, bias=not is_tied)
        if is_tied:
            self.head.weight = self.embed.weight

    def forward(self, rows: Tensor) -> Any:
        return super().forward((rows.abs() * 100).long() % 19)


class SharedPacked(Shared):
    """Query, key and value from one layer; the head shares the weight of the embedding, and so is cut with it."""

    parallel_plan: ClassVar[dict[str, Any]] = {
        **Shared.parallel_plan,
        "tensor": _plan(projections=["packed"], colwise="packed_qkv_colwise"),
    }

    def __init__(self) -> None:
        super().__init__(is_packed=True, is_tied=True)


class SharedSequence(Shared):
    """Between layers each rank has a part of every sequence, of 6 tokens."""

    parallel_plan: ClassVar[dict[str, Any]] = {
        **Shared.parallel_plan,
        "tensor": {
            **_plan(sequence="_sequence"),
            "blocks.*.norm": "sequence_parallel",
            "blocks.*.rows.norm": "sequence_parallel",
            "norm": "sequence_parallel",
            "head": "colwise_gather_output_sequence",
        },
    }

    def forward(self, rows: Tensor) -> Any:
        return super().forward(rows[:, :6])


class StackedExperts(nn.Module):
    """Experts whose weights lie one after the other; called as the experts of transformers are."""

    def __init__(self, num_experts: int, width: int, hidden: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.up = nn.Parameter(torch.randn(num_experts, hidden, width) / 3)
        self.down = nn.Parameter(torch.randn(num_experts, width, hidden) / 3)

    def forward(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Any:
        """Return the outputs for ``(tokens, features)``, whose experts and weights are ``(tokens, choices)``."""
        out = torch.zeros_like(hidden)
        for number in range(self.num_experts):
            token, place = torch.where(chosen == number)
            inside = torch.tanh(nn.functional.linear(hidden[token], self.up[number]))
            rows = nn.functional.linear(inside, self.down[number])
            out = out.index_add(0, token, rows * weights[token, place, None])
        return out


class ExpertBlock(nn.Module):
    """One layer whose router prefers experts with low numbers."""

    preference: Tensor

    def __init__(self, width: int, num_experts: int, kind: type[nn.Module]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.router = nn.Linear(width, num_experts)
        self.experts = kind(num_experts, width, 5)
        self.register_buffer("preference", -torch.arange(float(num_experts)), persistent=False)

    def forward(self, rows: Tensor) -> Any:
        normed = self.norm(rows)
        scores, chosen = torch.topk(self.router(normed) + self.preference, 2)
        return rows + self.experts(normed, chosen, scores.softmax(-1).to(rows.dtype))


class Mixture(Chain):
    """Layers with six experts; as the router prefers the first, some ranks get few tokens or none."""

    parallel_plan: ClassVar[dict[str, Any]] = {
        "units": ["blocks.*"],
        "tensor": {"first": "colwise_gather_output"},
        "experts": {"blocks.*.experts": "ep_dispatch_experts"},
    }

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(7, 10)
        self.blocks = nn.ModuleList(ExpertBlock(10, 6, StackedExperts) for _ in range(2))
        self.head = nn.Linear(10, 1)


class Tokens(Shared):
    """A language model that is told where its tokens stand, and which are padding."""

    parallel_plan: ClassVar[dict[str, Any]] = {**Shared.parallel_plan, "attention": ["blocks.*.attention"]}

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__(dropout=dropout)
        self.places = nn.Embedding(16, 12)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Any:
        length = input_ids.shape[1]
        if position_ids is None:
            position_ids = torch.arange(length)[None]
        mask = None
        if attention_mask is not None:
            mask = torch.ones(length, length, dtype=torch.bool).tril() & attention_mask[:, None, None].bool()
        hidden = self.embed(input_ids) + self.places(position_ids)
        for block in self.blocks:
            hidden = block(hidden, mask)
        return self.head(self.norm(hidden))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "odd": Odd,
    "scaled": Scaled,
    "tied": Tied,
    "buffered": Buffered,
    "adapted": Adapted,
    "dropout": lambda: Odd(0.3),
    "shared": Shared,
    "shared-tied": lambda: Shared(is_tied=True),
    "shared-packed": SharedPacked,
    "shared-sequence": SharedSequence,
    "tokens": Tokens,
    "shared-dropout": lambda: Shared(dropout=0.3),
    "mixture": Mixture,
}


def make_model(name: str, *, seed: int = 7, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a new model, the same for the same seed; draws from torch's global generator."""
    torch.manual_seed(seed)
    return MODELS[name]().to(dtype)


def make_batches(num: int, *, rows: int = 4, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Return batches of shape ``(rows, 7)``, the same in every process."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(rows, 7, generator=generator, dtype=dtype) for _ in range(num)]
