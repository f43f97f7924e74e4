"""Inference on several processes: each answers its share of the prompts, then all compute one model together.

    pip install tqdm
    python docs/examples/distributed_inference.py
    accel launch --cpu --num_processes 2 docs/examples/distributed_inference.py

Both ways print the same scores, on any number of processes up to one per block.
"""

import argparse

import torch
from torch import nn

from accel import PartialState, prepare_pippy
from accel.utils import gather_object, tqdm

PROMPTS = ["a dog", "a cat", "a chicken", "two cats and a dog", "nobody", "the same dog", "a cow"]
LENGTH = 24


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mix = nn.MultiheadAttention(width, num_heads=2, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor, *, is_padding: torch.Tensor) -> torch.Tensor:
        normed = self.norm(hidden)
        hidden = hidden + self.mix(normed, normed, normed, key_padding_mask=is_padding, need_weights=False)[0]
        return hidden + self.down(torch.relu(self.up(hidden)))


class Scorer(nn.Module):
    """Gives each text a score. Nothing in it knows how many processes there are."""

    def __init__(self, width: int = 32, num_blocks: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.place = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(num_blocks))
        self.head = nn.Linear(width, 1)

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        is_padding = tokens == 0
        hidden = self.embed(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            hidden = block(hidden, is_padding=is_padding)
        kept = (~is_padding).unsqueeze(-1)
        return {"scores": self.head((hidden * kept).sum(1) / kept.sum(1)).squeeze(-1)}


def encode(prompts: list[str]) -> torch.Tensor:
    return torch.tensor([list(prompt.encode().ljust(LENGTH, b"\0")) for prompt in prompts])


def answer_shares(model: nn.Module, state: PartialState) -> list[tuple[int, float]]:
    """Every process has the full model and answers its share of the prompts, one at a time; print the process."""
    answers = []
    with state.split_between_processes(PROMPTS) as prompts:
        for prompt in tqdm(prompts, desc="prompts"):
            score = model(encode([prompt]).to(state.device))["scores"].item()
            answers.append((state.process_index, score))
    return gather_object(answers)  # a list for all prompts; shares may be of unequal length


def answer_together(model: nn.Module, state: PartialState) -> list[float]:
    """Every process has some of the blocks; the batch passes through them in chunks."""
    model = prepare_pippy(model, example_args=(encode(PROMPTS[:2]),), gather_output=True)
    return model(encode(PROMPTS))["scores"].tolist()


@torch.inference_mode()
def main() -> None:
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    state = PartialState(cpu=True)
    torch.manual_seed(0)
    model = Scorer().eval()
    shares = answer_shares(model, state)
    together = answer_together(model, state)
    if state.is_main_process:
        print(f"{'prompt':20} {'answered by':>13} {'score':>9} {'of all together':>17}")
        for prompt, (rank, first), second in zip(PROMPTS, shares, together, strict=True):
            print(f"{prompt:20} {f'process {rank}':>13} {first:9.4f} {second:17.4f}")
    state.destroy_process_group()


if __name__ == "__main__":
    main()
