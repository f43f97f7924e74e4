"""Write text with what `sharded.py` learned: its merged weights in plain PyTorch, in one process.

It needs `pip install safetensors`.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file
from sharded import LENGTH, Language


@torch.inference_mode()
def generate(model: Language, prompt: bytes, *, num_tokens: int) -> bytes:
    """Return ``prompt`` with more bytes, sampled from the model's scores; the same bytes in every run."""
    tokens = torch.tensor([list(prompt)])
    chance = torch.Generator().manual_seed(0)
    for _ in range(num_tokens):
        likelihood = (model(tokens[:, -LENGTH:])[:, -1] / 0.7).softmax(-1)
        tokens = torch.cat([tokens, torch.multinomial(likelihood, 1, generator=chance)], dim=1)
    return bytes(tokens[0].tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where `accel merge-weights` wrote model.safetensors")
    parser.add_argument("--prompt", default="def ")
    parser.add_argument("--num_tokens", type=int, default=300)
    args = parser.parse_args()

    weights = load_file(args.folder / "model.safetensors")
    blocks = {name.split(".")[1] for name in weights if name.startswith("blocks.")}
    model = Language(width=weights["embed.weight"].shape[1], num_blocks=len(blocks)).eval()
    model.load_state_dict(weights)
    print(generate(model, args.prompt.encode(), num_tokens=args.num_tokens).decode(errors="replace"))


if __name__ == "__main__":
    main()
