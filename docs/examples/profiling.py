"""Profile a training step: a table, and a trace of every rank for chrome://tracing or ui.perfetto.dev.

    python docs/examples/profiling.py --output_dir runs/profile

On a GPU add `"cuda"` to `activities` and leave `cpu=True` out.
"""

import argparse

import torch
from torch import nn

from accel import Accelerator, ProfileKwargs


def main() -> None:
    parser = argparse.ArgumentParser(description="Profile a few training steps.")
    parser.add_argument("--output_dir", default="runs/profile")
    args = parser.parse_args()

    handler = ProfileKwargs(
        activities=["cpu"],
        schedule_option={"skip_first": 2, "wait": 1, "warmup": 1, "active": 3, "repeat": 2},
        output_trace_dir=args.output_dir,
        record_shapes=True,
        profile_memory=True,
        with_flops=True,
    )
    accelerator = Accelerator(cpu=True, kwargs_handlers=[handler])
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 14 * 14, 10))
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    images, labels = torch.randn(4, 1, 16, 16), torch.randint(10, (4,))
    with accelerator.profile() as profiler:
        for _ in range(12):
            accelerator.backward(nn.functional.cross_entropy(model(images), labels))
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    accelerator.print(profiler.key_averages().table(sort_by="cpu_time_total", row_limit=8))
    accelerator.end_training()


if __name__ == "__main__":
    main()
