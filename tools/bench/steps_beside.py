"""Source shared by cases that time a step against that of a plain copy in the same processes."""

from __future__ import annotations

MODEL = """
import copy, time, torch
import torch.distributed as dist
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(128), nn.Linear(128, 256), nn.Linear(256, 128)
    def forward(self, rows):
        return rows + self.down(torch.relu(self.up(self.norm(rows))))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(500, 128)
        self.blocks = nn.ModuleList(Block() for _ in range(12))
        self.norm, self.head = nn.LayerNorm(128), nn.Linear(128, 500)
    def forward(self, tokens):
        rows = self.embed(tokens)
        for block in self.blocks:
            rows = block(rows)
        return self.head(self.norm(rows))
initial = Model()
tokens = torch.randint(500, (4, 32))
def with_optimizer(model):
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)
"""
"""A model, its optimizer and a batch; a case defines `model`, `optimizer`, `backward`, and `beside()` that gives three
such for the plain copy."""

WIDE = MODEL.replace("256", "1024").replace("128", "512")
"""The same four times as wide: 13.1 million parameters, so that fixed costs weigh less."""

LONG = MODEL.replace("(4, 32)", "(4, 512)")
"""The same with 2,048 tokens instead of 128, so that costs per parameter weigh less."""

TURNS = """
durations = [[], []]
for number in range(70):
    for place in (0, 1) if number % 2 else (1, 0):
        dist.barrier()
        duration = step(*pair[place])
        if number >= 10:
            durations[place].append(duration)
measured, beside = (sorted(each)[len(each) // 2] for each in durations)
print(measured / beside)
"""
"""What a case says in ``pair`` and times in ``step``, one after the other, both ranks synchronized."""

CLOCK = (
    """
def step(model, optimizer, backward):
    begun = time.perf_counter()
    loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - begun
pair = [(model, optimizer, backward), beside()]
"""
    + TURNS
)
"""The median time of a step over that of the plain copy, turn by turn."""
