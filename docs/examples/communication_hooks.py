"""Gradients made smaller for the wire: what each communication hook of data parallelism does to the result.

    accel launch --cpu --num_processes 2 docs/examples/communication_hooks.py --hook fp16

DDP hands each bucket of gradients to the hook, which sends it in its own way; on one process nothing is sent.
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
    model = nn.Linear(16, 8)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
    for _ in range(200):
        inputs = torch.randn(32, 16, device=accelerator.device)
        loss = nn.functional.mse_loss(model(inputs), inputs[:, :8] - inputs[:, 8:])
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    final = accelerator.reduce(loss.detach(), "mean").item()
    accelerator.print(f"{args.hook}: loss after 200 steps {final:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
