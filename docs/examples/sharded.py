"""Train a language model whose parameters are sharded over the ranks, on sources of Python's standard library.

    pip install matplotlib
    accel launch --cpu --num_processes 2 docs/examples/sharded.py --stop_after 100     # or: kill -TERM <any rank>
    accel launch --cpu --num_processes 4 docs/examples/sharded.py                      # resumes, on four ranks
    accel merge-weights runs/language/sharded/checkpoints/checkpoint_1/pytorch_model_fsdp_0 runs/language/merged
    python docs/examples/generate_text.py runs/language/merged                         # plain PyTorch

With `--ddp` every rank has a full replica. Each run adds what its ranks needed to `memory.json`, prints all of them
side by side, and draws them with `--picture`.
"""

import argparse
import atexit
import importlib.util
import itertools
import json
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset

from accel import Accelerator, DataLoaderConfiguration, FullyShardedDataParallelPlugin, ProjectConfiguration
from accel.utils import set_seed

VOCABULARY = 256  # a token is a byte
LENGTH = 128
MODULES = (
    "argparse",
    "calendar",
    "configparser",
    "csv",
    "difflib",
    "pathlib",
    "statistics",
    "tarfile",
    "textwrap",
)


class Block(nn.Module):
    """Causal attention and a feed-forward part, both with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_heads = width // 32
        self.attention_norm, self.forward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return ``hidden`` of shape ``(batch, tokens, width)``, changed."""
        parts = self.attention(self.attention_norm(hidden)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        return hidden + self.feed_forward(self.forward_norm(hidden))


class Language(nn.Module):
    """A small language model of bytes."""

    def __init__(self, *, width: int, num_blocks: int) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(num_blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores ``(batch, tokens, VOCABULARY)`` of the next token, at each token."""
        hidden = self.embed(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


class Sources(Dataset):
    """The sources of some modules of the standard library, as rows of ``LENGTH + 1`` bytes."""

    def __init__(self) -> None:
        files = [importlib.util.find_spec(name).origin for name in MODULES]
        text = bytearray(b"".join(Path(file).read_bytes() for file in files))
        self.rows = torch.frombuffer(text, dtype=torch.uint8).unfold(0, LENGTH + 1, LENGTH)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index].long()


class Memory:
    """Memory of a rank: between two steps, and the peak since this object was created.

    Tensors are counted, and nothing else: the interpreter and the libraries are the same however a model is trained.
    """

    def __init__(self, device: torch.device) -> None:
        self.sizes: dict[str, int] = {}
        self._device = device
        self._profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        if device.type == "cpu":
            self._profiler.start()
            atexit.register(self._stop)  # torch crashes if a process ends while it records memory

    def measure(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Note all sizes in bytes, before the gradients are freed."""
        if self._device.type == "cpu":
            self._stop()
        parameters = list(model.parameters())
        states = [value for state in optimizer.state.values() for value in state.values()]
        self.sizes = {
            "parameters": size_of(parameters),
            "gradients": size_of([parameter.grad for parameter in parameters if parameter.grad is not None]),
            "optimizer": size_of([state for state in states if isinstance(state, torch.Tensor)]),
            "peak": self._peak_bytes(),
        }

    def _stop(self) -> None:
        atexit.unregister(self._stop)
        self._profiler.stop()

    def _peak_bytes(self) -> int:
        if self._device.type != "cpu":
            return torch.cuda.max_memory_allocated(self._device)
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json"
            self._profiler.export_chrome_trace(str(trace))
            events = json.loads(trace.read_text())["traceEvents"]
        changes = sorted(
            (event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]"
        )
        return max(itertools.accumulate(change for _, change in changes))


def size_of(tensors: list[torch.Tensor]) -> int:
    """Return the bytes of some tensors on this rank."""
    return sum((tensor.to_local() if isinstance(tensor, DTensor) else tensor).nbytes for tensor in tensors)


def report(memory: Memory, accelerator: Accelerator, *, name: str, file: Path, picture: Path | None) -> None:
    """Add the largest sizes of all ranks to the table of earlier runs, and print it."""
    sizes = torch.tensor(list(memory.sizes.values()), device=accelerator.device)
    largest = accelerator.gather(sizes.unsqueeze(0)).amax(dim=0).tolist()
    if not accelerator.is_main_process:
        return
    runs = json.loads(file.read_text()) if file.exists() else {}
    runs[name] = dict(zip(memory.sizes, largest, strict=True))
    file.write_text(json.dumps(runs, indent=2))
    print("MiB of tensors on the rank that has most:", *memory.sizes, sep="  ")
    for run, found in runs.items():
        print(f"  {run:<20}", *(f"{size / 2**20:8.2f}" for size in found.values()))
    if picture is not None:
        draw(runs, picture)


def draw(runs: dict[str, dict[str, int]], picture: Path) -> None:
    """Draw a bar for each run: what a rank keeps, and the peak that was measured."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.6 * len(runs)), layout="constrained")
    left = [0.0] * len(runs)
    for part, colour in (("parameters", "#2a6f97"), ("gradients", "#8ab6d1"), ("optimizer", "#c77d0a")):
        widths = [sizes[part] / 2**20 for sizes in runs.values()]
        axes.barh(list(runs), widths, left=left, height=0.5, label=part, color=colour)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    peaks = [sizes["peak"] / 2**20 for sizes in runs.values()]
    axes.scatter(peaks, list(runs), marker="|", s=300, color="black", label="measured peak")
    axes.invert_yaxis()
    axes.set(xlabel="MiB", xlim=(0, None), title="Memory of one rank")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a language model, sharded.")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--sharded", dest="kind", action="store_const", const="sharded", default="sharded")
    how.add_argument(
        "--ddp", dest="kind", action="store_const", const="ddp", help="a full replica on each rank"
    )
    parser.add_argument("--project_dir", type=Path, default=Path("runs/language"))
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--stop_after", type=int, help="save and leave after so many steps")
    parser.add_argument("--batch_size", type=int, default=16, help="of all ranks together")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--num_blocks", type=int, default=4)
    parser.add_argument("--picture", type=Path, help="where to draw the memory of all runs so far")
    args = parser.parse_args()

    folder = args.project_dir / args.kind
    accelerator = Accelerator(
        fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2) if args.kind == "sharded" else None,
        dataloader_config=DataLoaderConfiguration(split_batches=True),  # the batch is that of all ranks
        project_config=ProjectConfiguration(str(folder), automatic_checkpoint_naming=True, total_limit=2),
        scheduler_unit="optimizer_step",
    )
    set_seed(0)
    memory = Memory(accelerator.device)
    model = Language(width=args.width, num_blocks=args.num_blocks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    loader = DataLoader(Sources(), batch_size=args.batch_size, shuffle=True, drop_last=True)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    if not len(loader):
        raise SystemExit("The sources do not fill one batch; lower --batch_size.")
    # A checkpoint of any number of ranks, also from within an epoch.
    if accelerator.load_state(restore_loaders=True, missing_ok=True):
        accelerator.print(f"resuming after step {scheduler.last_epoch}, on {accelerator.num_processes} ranks")

    first = scheduler.last_epoch
    stop_at = min(args.steps, args.stop_after or args.steps)
    with accelerator.handle_preemption(grace_period_s=60):
        while scheduler.last_epoch < stop_at and not accelerator.should_stop:
            for rows in loader:
                loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                step = scheduler.last_epoch
                if step == first + 2:
                    memory.measure(model, optimizer)
                optimizer.zero_grad()
                if step % 20 == 0 or step == stop_at:
                    mean = accelerator.reduce(loss.detach(), "mean").item()
                    accelerator.print(f"step {step}: loss {mean:.4f}")
                # Within the epoch, so that its position is saved; each rank writes its shards.
                if accelerator.should_stop or step == stop_at:
                    accelerator.print(f"saved to {accelerator.save_state()}")
                    break

    if memory.sizes:
        name = f"{args.kind}, {accelerator.num_processes} ranks"
        report(memory, accelerator, name=name, file=args.project_dir / "memory.json", picture=args.picture)
    accelerator.end_training()


if __name__ == "__main__":
    main()
