"""Gradient accumulation, seen in one number: four small batches give the step of one batch of eight.

    python docs/examples/accumulation.py
    accel launch --cpu --num_processes 2 docs/examples/accumulation.py

The model is one weight `w`, the data `y = 2 x` for x = 1 … 8, the loss the mean of `(w x - y)²`. Its slope at
`w = 0` is the mean of `-4 x²`, -102; so one step at rate 0.02 must end at 2.04, with any accumulation, on one process,
two or four. Batches of unequal size end there only if `num_items` is their number of samples.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accel import Accelerator


def weight_after(sizes: list[int], *, weighted: bool = False) -> float:
    """Return the weight after one optimizer step over all eight samples, in batches of these sizes."""
    x = torch.arange(1.0, 9.0).unsqueeze(1)
    accelerator = Accelerator()
    accelerator.gradient_accumulation_steps = len(sizes) // accelerator.num_processes
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    batches = [rows.tolist() for rows in torch.arange(8).split(sizes)]
    loader = DataLoader(TensorDataset(x, 2 * x), batch_sampler=batches)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss, num_items=len(inputs) if weighted else None)
            optimizer.step()
            optimizer.zero_grad()
    return accelerator.unwrap_model(model).weight.item()


def main() -> None:
    accelerator = Accelerator()
    if 4 % accelerator.num_processes:
        raise SystemExit(
            f"Four batches cannot be shared by {accelerator.num_processes} processes. Start 1, 2 or 4."
        )
    whole = [8 // accelerator.num_processes] * accelerator.num_processes  # a batch for each process
    unequal = [1, 1, 2, 4]
    accelerator.print(f"no accumulation:              {weight_after(whole):.5f}")
    accelerator.print(f"four batches of two:          {weight_after([2, 2, 2, 2]):.5f}")
    accelerator.print(f"batches of 1, 1, 2 and 4:     {weight_after(unequal):.5f}")
    accelerator.print(f"the same, with `num_items`:   {weight_after(unequal, weighted=True):.5f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
