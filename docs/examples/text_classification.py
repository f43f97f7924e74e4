"""Classify lines of Python's standard library as comments or code with a small transformer.

    python docs/examples/text_classification.py
    accel launch --cpu --num_processes 2 docs/examples/text_classification.py \\
        --mixed_precision bf16 --gradient_accumulation_steps 2 --by_lines --clip_norm 1 --warmup_steps 20 \\
        --checkpointing_steps 50 --with_tracking
    python docs/examples/text_classification.py --resume_from runs/texts/step_50

Lines have many lengths. Each batch is padded to its longest line, and on several processes batches differ in length:
`gather_for_metrics` takes labels only, which do not. `--by_lines` weights each batch by its number of lines, so that a
short last one does not count as much as a full one. A run that is resumed with the same flags ends with the weights of
one that was not stopped, bit for bit.
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
    """Return ``characters``, ``(batch, longest)`` with 0 after the end of a line, and ``labels``, ``(batch,)``."""
    characters = pad_sequence([line for line, _ in lines], batch_first=True)
    return {"characters": characters, "labels": torch.tensor([label for _, label in lines])}


class Classifier(nn.Module):
    """A transformer over characters whose mean output decides; it also computes the loss."""

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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Classify comments and code, with every feature off or on.")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=32, help="of each process")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num_files", type=int, default=24, help="modules of the standard library to read")
    parser.add_argument("--mixed_precision", choices=["no", "fp16", "bf16"])
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--by_lines", action="store_true", help="weight batches by their number of lines")
    parser.add_argument("--clip_norm", type=float, help="largest norm of the gradients")
    parser.add_argument("--warmup_steps", type=int, default=0, help="warm-up steps of the learning rate")
    parser.add_argument("--checkpointing_steps", type=int, help="save after every so many steps")
    parser.add_argument("--resume_from", type=Path, help="a checkpoint of an earlier run")
    parser.add_argument("--with_tracking", action="store_true", help="log to a file of JSON lines")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/texts"))
    return parser.parse_args()


def evaluate(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> tuple[int, int]:
    """Return how many lines are classified correctly, and how many there are: each once, on any number of processes."""
    model.eval()
    right = seen = 0
    for batch in loader:
        with torch.no_grad():
            _, scores = model(**batch)
        guesses, labels = accelerator.gather_for_metrics((scores.argmax(1), batch["labels"]))
        right, seen = right + int((guesses == labels).sum()), seen + len(labels)
    model.train()
    return right, seen


def main() -> None:
    args = arguments()
    accelerator = Accelerator(
        mixed_precision=args.mixed_precision,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        log_with="jsonl" if args.with_tracking else None,
        project_dir=args.output_dir,
        scheduler_unit="optimizer_step",
    )
    if args.with_tracking:
        accelerator.init_trackers("texts", config={"lr": args.lr, "batch_size": args.batch_size})
    set_seed(args.seed)
    with accelerator.local_main_process_first():
        lines = read_lines(args.num_files)
    test = [line for number, line in enumerate(lines) if number % 5 == 0]
    train = [line for number, line in enumerate(lines) if number % 5]
    train_loader = DataLoader(train, args.batch_size, shuffle=True, collate_fn=collate)
    test_loader = DataLoader(test, args.batch_size, collate_fn=collate)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / (args.warmup_steps + 1))
    )
    model, optimizer, scheduler, train_loader, test_loader = accelerator.prepare(
        model, optimizer, scheduler, train_loader, test_loader
    )
    if args.resume_from is not None:
        accelerator.load_state(args.resume_from, restore_loaders=True)
        accelerator.print(f"resuming from {args.resume_from}: step {scheduler.last_epoch}")

    while train_loader.iteration < args.epochs:
        epoch = train_loader.iteration
        for batch in train_loader:
            with accelerator.accumulate(model):
                loss, _ = model(**batch)
                accelerator.backward(loss, num_items=len(batch["labels"]) if args.by_lines else None)
                if args.clip_norm is not None and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), args.clip_norm)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            step = scheduler.last_epoch  # optimizer steps so far, also those before a resume
            if args.checkpointing_steps is not None and step % args.checkpointing_steps == 0:
                accelerator.save_state(args.output_dir / f"step_{step}")
            if args.with_tracking:
                accelerator.log({"loss": loss, "lr": scheduler.get_last_lr()[0]}, step=step)
        right, seen = evaluate(accelerator, model, test_loader)
        accelerator.print(f"epoch {epoch}: {right} of {seen} lines right, {right / seen:.3f}")
        if args.with_tracking:
            accelerator.log({"accuracy": right / seen}, step=scheduler.last_epoch)
    label_counts = [sum(label == kind for _, label in test) for kind in (0, 1)]
    accelerator.print(f"always the same answer: {max(label_counts) / len(test):.3f}")
    accelerator.save_model(model, args.output_dir / "weights")
    accelerator.end_training()


if __name__ == "__main__":
    main()
