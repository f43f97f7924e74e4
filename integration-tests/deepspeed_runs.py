"""A model, a new run of a kind that trains it, and how far what it holds is from what another holds."""

from __future__ import annotations

import torch
from torch import nn

from accel import Accelerator, DeepSpeedPlugin, FullyShardedDataParallelPlugin
from accel.utils import set_seed
from accel_backends.unwrap import stepped_optimizer
from accel_state.runtime import reset_runtime


class Net(nn.Module):
    """Tied and frozen weights, dropout, and sizes that two ranks do not divide."""

    def __init__(self):
        super().__init__()
        self.embed, self.up, self.drop = nn.Embedding(11, 7), nn.Linear(7, 33), nn.Dropout(0.1)
        self.frozen = nn.Linear(33, 7).requires_grad_(False)
        self.head = nn.Linear(7, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor([2.0]))

    def forward(self, tokens):
        hidden = self.drop(torch.relu(self.up(self.embed(tokens))))
        return self.head(self.frozen(hidden)) * self.scale


class Run:
    """A new run of a kind: the stage of ZeRO, or another strategy."""

    def __init__(self, kind, *, seed=0, lr=0.02, **options):
        reset_runtime(keep_process_group=True)
        if kind == "fsdp2":
            options["fsdp_plugin"] = FullyShardedDataParallelPlugin(fsdp_version=2)
        elif kind != "ddp":
            options["deepspeed_plugin"] = DeepSpeedPlugin(
                hf_ds_config={
                    "train_micro_batch_size_per_gpu": 4,
                    "gradient_clipping": 0.0,
                    "zero_optimization": {"stage": kind, "stage3_param_persistence_threshold": 40},
                }
            )
        self.accelerator = Accelerator(cpu=True, **options)
        set_seed(seed)
        model = Net()
        embed, *rest = [one for one in model.parameters() if one.requires_grad]
        groups = [{"params": [embed], "lr": lr / 2}, {"params": rest}]
        optimizer = torch.optim.AdamW(groups, lr=lr)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        prepared = self.accelerator.prepare(model, optimizer, scheduler)
        self.model, self.optimizer, self.scheduler = prepared

    def train(self, num_steps=2):
        rank, num_ranks = self.accelerator.process_index, self.accelerator.num_processes
        tokens = torch.arange(11).repeat(8)[:8]
        for _ in range(num_steps):
            own = tokens.chunk(num_ranks)[rank]
            self.accelerator.backward(nn.functional.cross_entropy(self.model(own), own))
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()

    def values(self):
        """Return everything that is trained, and what the optimizer keeps of it."""
        return values_of(self.accelerator, self.model, self.optimizer, self.scheduler)


def values_of(accelerator, model, optimizer, scheduler):
    """Return the weights of a model, what its optimizer keeps of them, and how far the scheduler is."""
    strategy = accelerator.strategy
    state = strategy.optimizer_tensors(stepped_optimizer(optimizer))
    return plain(
        {
            "model": strategy.model_tensors(accelerator.unwrap_model(model)),
            "optimizer": state["state"],
            "lr": [group["lr"] for group in state["param_groups"]],
            "scheduler": scheduler.state_dict()["last_epoch"],
        }
    )


def plain(value):
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    for whole in ("fetch", "full_tensor"):
        if hasattr(value, whole):
            value = getattr(value, whole)()
    return value.clone() if isinstance(value, torch.Tensor) else value


def distance(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys(), f"{sorted(one)} and {sorted(other)}"
        return max((distance(one[name], other[name]) for name in one), default=0.0)
    if isinstance(one, list):
        return max(distance(a, b) for a, b in zip(one, other, strict=True))
    return float((torch.as_tensor(one).double() - torch.as_tensor(other).double()).abs().max())
