"""The models that commands on pages name ``my_package.models``: a reader's own, with plans for `tp_size`, `ep_size`."""

from typing import ClassVar

import torch
from torch import nn

WIDTH = 64
VOCABULARY = 128


class Block(nn.Module):
    """A feed-forward part with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return ``hidden`` of shape ``(batch, tokens, WIDTH)``, changed."""
        return hidden + self.down(self.up(hidden))


class Experts(nn.ModuleList):
    """Blocks, of which each token has chosen some."""

    def forward(self, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the weighted sums: ``hidden`` is ``(tokens, WIDTH)``, the others are ``(tokens, choices)``."""
        outputs = [
            expert(hidden) * (weights * (chosen == index)).sum(1)[:, None]
            for index, expert in enumerate(self)
        ]
        return torch.stack(outputs).sum(0)


class ExpertBlock(Block):
    """A block with experts, two for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 8), Experts(Block() for _ in range(8))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return ``hidden`` of shape ``(batch, tokens, WIDTH)``, changed."""
        tokens = super().forward(hidden).flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(2)
        return self.experts(tokens, chosen, weights).view_as(hidden)


class Net(nn.Module):
    """A small model of tokens."""

    block: ClassVar = Block
    parallel_plan: ClassVar = {
        "units": ["blocks.*"],
        "tensor": {"blocks.*.up": "colwise", "blocks.*.down": "rowwise"},
    }

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(self.block() for _ in range(4)))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return scores of shape ``(batch, tokens, VOCABULARY)``."""
        return self.head(self.blocks(self.embed(input_ids)))


class Mixture(Net):
    """The same with experts."""

    block: ClassVar = ExpertBlock
    parallel_plan: ClassVar = {"units": ["blocks.*"], "experts": {"blocks.*.experts": "ep_dispatch_experts"}}


build = Net
