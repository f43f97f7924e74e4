"""Find the largest batch that fits: the training is started again with a smaller one when memory runs out.

    python docs/examples/automatic_batch_size.py
    accel launch --cpu --num_processes 2 docs/examples/automatic_batch_size.py --limit 40

All ranks take the smaller batch together. A rank that waits in a collective for one that ran out of memory cannot be
recovered, so give all ranks devices of the same size. Without GPUs memory hardly ever runs out, so `--limit` lets the
model raise the error of a full GPU for larger batches.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accel import Accelerator
from accel.utils import find_executable_batch_size, set_seed


class SmallDevice(nn.Module):
    """A layer that runs out of memory for more than ``limit`` rows."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.limit = limit

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if len(rows) > self.limit:
            raise torch.OutOfMemoryError(f"{len(rows)} rows do not fit")
        return self.layer(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Find the largest batch that fits.")
    parser.add_argument("--limit", type=int, default=40, help="rows that fit")
    parser.add_argument("--starting_batch_size", type=int, default=256)
    args = parser.parse_args()

    accelerator = Accelerator()
    inputs = torch.randn(1024, 8, generator=torch.Generator().manual_seed(0))
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))

    @find_executable_batch_size(starting_batch_size=args.starting_batch_size)  # accel
    def train(batch_size: int) -> tuple[int, float]:
        """Return the batch size that fits and the last loss. Everything that needs memory is made in here."""
        accelerator.free_memory()
        accelerator.print(f"trying {batch_size} rows")
        set_seed(0)
        model = SmallDevice(args.limit)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = DataLoader(data, batch_size, shuffle=True)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for _ in range(3):
            for rows, targets in loader:
                loss = nn.functional.mse_loss(model(rows), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        return batch_size, loss.item()

    batch_size, loss = train()
    accelerator.print(f"{batch_size} rows fit on every rank; loss {loss:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
