"""Train a language model from scratch on text files, so that the run can be resumed at any step.

    pip install tqdm
    python docs/examples/language_model.py --files 'books/**/*.txt'
    accel launch --cpu --num_processes 2 docs/examples/language_model.py --steps 200
    accel launch --cpu --num_processes 2 docs/examples/language_model.py --steps 400   # resumes

Without `--files` it reads some sources of Python's standard library. It reads bytes, so it needs no tokenizer. A
checkpoint is written in the background during training.
"""

import argparse
import math
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from accel import Accelerator, ProjectConfiguration
from accel.utils import set_seed, tqdm


class Windows(Dataset):
    """Windows of ``length + 1`` bytes of all files, concatenated."""

    def __init__(self, text: torch.Tensor, length: int) -> None:
        self.text, self.length = text, length

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        start = index * self.length
        return self.text[start : start + self.length + 1].long()


class Block(nn.Module):
    """Causal attention, then a small network at each position."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        batch, length, width = states.shape
        heads = self.queries_keys_values(self.norms[0](states)).view(batch, length, 3, self.num_heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.output(seen.transpose(1, 2).reshape(batch, length, width))
        return states + self.network(self.norms[1](states))


class LanguageModel(nn.Module):
    """From ``(batch, length)`` bytes to ``(batch, length, 256)`` scores of the next ones."""

    def __init__(self, *, width: int, num_blocks: int, length: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, num_heads=4) for _ in range(num_blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.bytes.weight
        for embedding in (self.bytes, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        states = self.bytes(text) + self.positions.weight[: text.shape[1]]
        for block in self.blocks:
            states = block(states)
        return self.head(self.norm(states))


def read_files(pattern: str) -> torch.Tensor:
    """Return the bytes of all files that a pattern such as ``books/**/*.txt`` matches."""
    root = Path(pattern).anchor  # empty, unless the pattern starts at the root of a disk
    files = sorted(file for file in Path(root).glob(pattern.removeprefix(root)) if file.is_file())
    if not files:
        raise SystemExit(f"no file matches `{pattern}`; name others with --files")
    return torch.frombuffer(bytearray(b"\n".join(file.read_bytes() for file in files)), dtype=torch.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a language model on text files.")
    sources = Path(sysconfig.get_path("stdlib")) / "asyncio" / "*.py"
    parser.add_argument(
        "--files", default=str(sources), help="pattern of the files to read (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch_size", type=int, default=8, help="of each process")
    parser.add_argument("--length", type=int, default=128, help="bytes in a row")
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--num_blocks", type=int, default=3)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--save_every", type=int, default=100, help="steps between two checkpoints")
    parser.add_argument("--project_dir", type=Path, default=Path("runs/language_model"))
    args = parser.parse_args()

    project = ProjectConfiguration(str(args.project_dir), automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(project_config=project, log_with="jsonl", scheduler_unit="optimizer_step")
    accelerator.init_trackers("log", config={"lr": args.lr, "width": args.width})
    set_seed(0)
    text = read_files(args.files)
    split = len(text) * 9 // 10
    loader = DataLoader(Windows(text[:split], args.length), args.batch_size, shuffle=True, drop_last=True)
    test = DataLoader(Windows(text[split:], args.length), args.batch_size)
    model = LanguageModel(width=args.width, num_blocks=args.num_blocks, length=args.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    model, optimizer, scheduler, loader, test = accelerator.prepare(model, optimizer, scheduler, loader, test)
    if not len(loader):
        raise SystemExit(
            f"{split} bytes do not fill one batch on every process; read more files or lower --batch_size"
        )
    if accelerator.load_state(restore_loaders=True, missing_ok=True):  # the newest complete one, if any
        accelerator.print(f"resuming after step {scheduler.last_epoch}")

    throughput = accelerator.throughput()
    bar = tqdm(total=args.steps, initial=scheduler.last_epoch, desc="training", unit="step")
    with accelerator.handle_preemption(grace_period_s=60):
        while scheduler.last_epoch < args.steps:
            for windows in loader:
                with throughput.step(num_items=windows[:, 1:].numel()):
                    scores = model(windows[:, :-1])
                    loss = nn.functional.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())
                    accelerator.backward(loss)
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                bar.update()
                step = scheduler.last_epoch
                if step % 10 == 0:
                    accelerator.log({"loss": loss, **throughput.figures()}, step=step)
                if accelerator.should_stop or step % args.save_every == 0 or step == args.steps:
                    accelerator.save_state(blocking=False)
                if accelerator.should_stop or step == args.steps:
                    break
            if accelerator.should_stop:
                break

    model.eval()
    losses = []
    for windows in test:
        with torch.no_grad():
            scores = model(windows[:, :-1]).transpose(1, 2)
        each = nn.functional.cross_entropy(scores, windows[:, 1:], reduction="none").mean(dim=1)
        losses.append(accelerator.gather_for_metrics(each))
    loss = torch.cat(losses).mean().item()
    accelerator.print(f"held out: {loss / math.log(2):.3f} bits per byte, {len(torch.cat(losses))} windows")
    accelerator.save_model(model, args.project_dir / "weights")
    accelerator.end_training()


if __name__ == "__main__":
    main()
