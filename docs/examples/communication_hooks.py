"""Compress DDP gradients: what each communication hook of data parallelism does to the result.

    accel launch --cpu --num_processes 2 docs/examples/communication_hooks.py --hook fp16

DDP passes each bucket of gradients to the hook, which reduces it; on one process nothing is sent.
"""

import argparse

import torch
from torch import nn

from accel import Accelerator, DDPCommunicationHookType, DistributedDataParallelKwargs
from accel.utils import set_seed

OPTIONS = {
    "no": DistributedDataParallelKwargs(),
    "fp16": DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16),
    "power_sgd": DistributedDataParallelKwargs(
        comm_hook=DDPCommunicationHookType.POWER_SGD,
        comm_state_option={"matrix_approximation_rank": 4, "start_powerSGD_iter": 2},
    ),
    "power_sgd in fp16": DistributedDataParallelKwargs(
        comm_hook=DDPCommunicationHookType.POWER_SGD,
        comm_wrapper=DDPCommunicationHookType.FP16,
        comm_state_option={"matrix_approximation_rank": 4, "start_powerSGD_iter": 2},
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a line with compressed gradients.")
    parser.add_argument("--hook", choices=sorted(OPTIONS), default="fp16")
    args = parser.parse_args()

    accelerator = Accelerator(kwargs_handlers=[OPTIONS[args.hook]])
    set_seed(0, device_specific=True)
    model = nn.Linear(64, 32)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.2))
    for step in range(1, 201):
        inputs = torch.randn(32, 64, device=accelerator.device)
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :32] - inputs[:, 32:])
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            mean = accelerator.reduce(loss.detach(), "mean").item()
            accelerator.print(f"{args.hook}: loss after {step} steps {mean:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
