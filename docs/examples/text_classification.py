"""Tell comments from code: classify lines of Python's own standard library with a small transformer.

    python docs/examples/text_classification.py
    accel launch --cpu --num_processes 2 docs/examples/text_classification.py --mixed_precision bf16 --by_tokens

Lines have many lengths. Each batch is padded to its longest line, and on several processes batches differ in length:
`gather_for_metrics` takes labels only, which do not. `--by_tokens` weights each batch by its number of real characters.
"""

import argparse
import io
import sysconfig
import tokenize
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from accel import Accelerator
from accel.utils import set_seed

Line = tuple[torch.Tensor, int]
MOST_CHARACTERS = 80


def lines_of(source: str) -> list[tuple[str, int]]:
    """Return each line of a Python file with 1 if it is a comment or part of a text, else 0; no short ones."""
    prose: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_alone = token.line.lstrip().startswith(("#", '"""', "'''"))
        if token.type in (tokenize.COMMENT, tokenize.STRING) and is_alone:
            prose.update(range(token.start[0], token.end[0] + 1))
    texts = [line.strip("#\"' \t").lstrip() for line in source.splitlines()]
    return [(text, int(number in prose)) for number, text in enumerate(texts, 1) if len(text) > 20]


def read_lines(num_files: int) -> list[Line]:
    """Return lines of the first modules of the standard library, as character codes, with their labels."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:num_files]
    pairs = [pair for file in files for pair in lines_of(file.read_text(encoding="utf-8"))]
    return [
        (torch.tensor(list(text[:MOST_CHARACTERS].encode("ascii", "replace"))), label)
        for text, label in pairs
    ]


def collate(lines: list[Line]) -> dict[str, torch.Tensor]:
    """Return ``characters``, ``(batch, longest)`` with 0 behind the end of a line, and ``labels``, ``(batch,)``."""
    characters = pad_sequence([line for line, _ in lines], batch_first=True)
    return {"characters": characters, "labels": torch.tensor([label for _, label in lines])}


class Classifier(nn.Module):
    """A transformer over characters whose mean output decides; it computes its own loss."""

    def __init__(self, width: int = 48, num_blocks: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(128, width, padding_idx=0)
        self.positions = nn.Embedding(MOST_CHARACTERS, width)
        block = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, num_blocks, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, characters: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss and ``(batch, 2)`` scores."""
        is_padding = characters == 0
        states = self.characters(characters) + self.positions.weight[: characters.shape[1]]
        states = self.blocks(states, src_key_padding_mask=is_padding)
        states = states.masked_fill(is_padding.unsqueeze(2), 0).sum(1) / (~is_padding).sum(1, keepdim=True)
        scores = self.head(states)
        return nn.functional.cross_entropy(scores, labels), scores


def main() -> None:
    parser = argparse.ArgumentParser(description="Tell comments from code.")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=32, help="of each process")
    parser.add_argument("--num_files", type=int, default=24)
    parser.add_argument("--mixed_precision", choices=["no", "fp16", "bf16"])
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--by_tokens", action="store_true", help="weight batches by their characters")
    args = parser.parse_args()

    accelerator = Accelerator(
        mixed_precision=args.mixed_precision, gradient_accumulation_steps=args.gradient_accumulation_steps
    )
    set_seed(0)
    with accelerator.local_main_process_first():
        lines = read_lines(args.num_files)
    test = [line for number, line in enumerate(lines) if number % 5 == 0]
    train = [line for number, line in enumerate(lines) if number % 5]
    train_loader = DataLoader(train, args.batch_size, shuffle=True, collate_fn=collate)
    test_loader = DataLoader(test, args.batch_size, collate_fn=collate)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, optimizer, train_loader, test_loader = accelerator.prepare(
        model, optimizer, train_loader, test_loader
    )
    for epoch in range(args.epochs):
        model.train()
        for batch in train_loader:
            with accelerator.accumulate(model):
                loss, _ = model(**batch)
                count = (batch["characters"] != 0).sum() if args.by_tokens else None
                accelerator.backward(loss, num_items=count)
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        right = seen = 0
        for batch in test_loader:
            with torch.no_grad():
                _, scores = model(**batch)
            guesses, labels = accelerator.gather_for_metrics((scores.argmax(1), batch["labels"]))
            right, seen = right + int((guesses == labels).sum()), seen + len(labels)
        assert seen == len(test)  # every line once, on any number of processes
        accelerator.print(f"epoch {epoch}: {right} of {seen} lines right, {right / seen:.3f}")
    always = max(label_count := [sum(label == kind for _, label in test) for kind in (0, 1)]) / sum(
        label_count
    )
    accelerator.print(f"always the same answer: {always:.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
