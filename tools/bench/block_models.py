"""Source of a model of residual blocks, which cases about sharding share."""

BLOCK_MODEL = """
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
    def forward(self, rows):
        return rows + self.down(torch.relu(self.up(rows)))
class Model(nn.Module):
    def __init__(self, width=1024, num_blocks=24):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(num_blocks))
    def forward(self, rows):
        for block in self.blocks:
            rows = block(rows)
        return rows
"""
"""A block of the width 1024 has 16 MiB, its largest tensor 8."""
