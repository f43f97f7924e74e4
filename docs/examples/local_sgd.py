"""Local SGD: every rank trains separately for some steps, then the weights of all ranks are averaged.

    accel launch --cpu --num_processes 2 docs/examples/local_sgd.py

It prints how far the weights of the ranks were apart in between.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accel import Accelerator, LocalSGD
from accel.utils import gather, set_seed


def main() -> None:
    accelerator = Accelerator()
    set_seed(0)
    inputs = torch.randn(512, 4)
    targets = inputs.sum(1, keepdim=True) + torch.randn(512, 1)  # noise, so that ranks keep drifting
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=8)
    model = nn.Linear(4, 1)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.03), loader
    )
    weight = accelerator.unwrap_model(model).weight
    apart = 0.0
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=8) as local_sgd:  # accel
        for step, (rows, targets) in enumerate(loader, 1):
            loss = nn.functional.mse_loss(model(rows), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            everywhere = gather(weight.detach().clone())
            apart = max(apart, (everywhere - everywhere[:1]).abs().max().item())
            local_sgd.step()  # accel
            if step % 2 == 0:
                everywhere = gather(weight.detach().clone())
                now = (everywhere - everywhere[:1]).abs().max().item()
                accelerator.print(f"step {step}: ranks are apart by {now:.3f}")
    everywhere = gather(weight.detach())
    together = (everywhere - everywhere[:1]).abs().max().item()
    accelerator.print(f"ranks were apart by up to {apart:.3f}, and are by {together:.3f} at the end")
    accelerator.print(f"loss {loss.item():.5f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
