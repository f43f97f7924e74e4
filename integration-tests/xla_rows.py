"""A small language model that trains on XLA devices by `Accelerator`, or on the CPU by plain PyTorch.

Run as ``python xla_rows.py CASE FOLDER``: saves what it came to in FOLDER, as CASE.pt.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

NUM_ROWS, BATCH, ACCUMULATE, CLIP, EPOCHS = 18, 4, 2, 0.3, 3
VOCABULARY = 12


class Block(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden):
        return hidden + self.dropout(self.down(torch.tanh(self.up(hidden))))


class Model(nn.Module):
    """Its head is its embedding."""

    _no_split_modules = ("Block",)

    def __init__(self, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(2))
        self.head = nn.Linear(8, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        self.dtypes = set()

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(hidden)
        self.dtypes.add(logits.dtype)
        return logits


def loss_of(model, tokens):
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def make(dropout=0.0):
    """Return the model, an optimizer that has stepped already, a scheduler and a loader whose last batch is short."""
    torch.manual_seed(1)
    model = Model(dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, VOCABULARY, (NUM_ROWS, 5), generator=generator)
    loss_of(model.eval(), tokens).backward()
    model.train()
    optimizer.step()
    optimizer.zero_grad()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.9)
    return model, optimizer, scheduler, DataLoader(TensorDataset(tokens), batch_size=BATCH)


def result_of(model, losses, norms, **more):
    return {
        "losses": [float(loss) for loss in losses],
        "norms": [float(norm) for norm in norms],
        "state": {name: value.detach().cpu().clone() for name, value in model.state_dict().items()},
        **more,
    }


def plain():
    model, optimizer, scheduler, loader = make()
    losses, norms = [], []
    for _ in range(EPOCHS):
        for index, (tokens,) in enumerate(loader):
            loss = loss_of(model, tokens)
            (loss / ACCUMULATE).backward()
            losses.append(loss.detach())
            if (index + 1) % ACCUMULATE == 0 or index == len(loader) - 1:
                norms.append(nn.utils.clip_grad_norm_(model.parameters(), CLIP))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    return result_of(model, losses, norms)


def accelerated(folder, *, plugin=None, mixed_precision=None, dropout=0.0, save_in=None, resume=False):
    """Train through `Accelerator`; save in the middle of epoch ``save_in``, or continue from there."""
    from torch_xla.debug import metrics

    from accel import Accelerator
    from accel.utils import set_seed

    set_seed(5)
    accelerator = Accelerator(
        gradient_accumulation_steps=ACCUMULATE, fsdp_plugin=plugin, mixed_precision=mixed_precision
    )
    made, optimizer, scheduler, loader = make(dropout)
    made.dtypes.clear()
    model, optimizer, scheduler, loader = accelerator.prepare(made, optimizer, scheduler, loader)
    parameters = list(model.parameters())
    losses, norms, compiled, spread = [], [], [], set()
    if resume:
        accelerator.load_state(str(folder / "checkpoint"), restore_loaders=True, trusted=True)
    for epoch in range(1 if resume else 0, EPOCHS):
        for index, (tokens,) in enumerate(loader):
            spread.add(sharding_of(tokens))
            with accelerator.accumulate(model):
                loss = loss_of(model, tokens)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norms.append(accelerator.clip_grad_norm_(model.parameters(), CLIP))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.detach())
            if epoch == save_in and index == 2:
                accelerator.save_state(str(folder / "checkpoint"))
        compiled.append(metrics.counter_value("UncachedCompile"))
    plain_model = accelerator.unwrap_model(model)
    return result_of(
        plain_model,
        losses,
        norms,
        is_tied=plain_model.head.weight is plain_model.embed.weight,
        is_same_model=plain_model is made,
        steps_the_model={id(one) for group in optimizer.param_groups for one in group["params"]}
        == {id(one) for one in parameters},
        strategy=accelerator.strategy.name,
        compiled=compiled,
        batches=spread,
        parameters={name: sharding_of(value) for name, value in plain_model.named_parameters()},
        states={
            sharding_of(value["exp_avg"]) for value in optimizer.state.values() if value["exp_avg"].dim() == 2
        },
        dtypes=plain_model.dtypes,
        skipped=optimizer.step_was_skipped,
    )


def sharding_of(tensor):
    import torch_xla

    return torch_xla._XLAC._get_xla_sharding_spec(tensor)


def fsdp(**fields):
    from accel import FullyShardedDataParallelPlugin

    return FullyShardedDataParallelPlugin(fsdp_version=2, xla_fsdp_v2=True, **fields)


def spmd(folder, **arguments):
    import torch_xla.runtime

    torch_xla.runtime.use_spmd()
    return accelerated(folder, **arguments)


def operations(folder):
    """Return what collectives, weighted losses, clipped values and `save_model` make of tensors on the device."""
    from safetensors.torch import load_file

    from accel import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=2)
    model, optimizer, _, loader = make()
    tokens = next(iter(loader))[0]
    model, optimizer = accelerator.prepare(model, optimizer)
    numbers = torch.arange(3, device=accelerator.device)
    for rows in (tokens[:1], tokens[1:]):
        with accelerator.accumulate(model):
            loss = loss_of(model, rows.to(accelerator.device))
            accelerator.backward(loss, num_items=len(rows))
            accelerator.clip_grad_value_(model.parameters(), 0.1)
    gradients = {name: one.grad.cpu() for name, one in model.named_parameters()}
    accelerator.save_model(model, str(folder / "model"))
    expected, *_ = make()
    loss_of(expected, tokens).backward()
    nn.utils.clip_grad_value_(expected.parameters(), 0.1)
    return {
        "gathered": accelerator.gather(numbers).tolist(),
        "reduced": accelerator.reduce(numbers, "sum").tolist(),
        "padded": accelerator.pad_across_processes(numbers).tolist(),
        "device": accelerator.gather(numbers).device.type,
        "gradients": gradients,
        "expected": {name: one.grad for name, one in expected.named_parameters()},
        "saved": load_file(folder / "model" / "model.safetensors"),
        "state": {name: value.cpu() for name, value in model.named_parameters()},
    }


def refusals(folder):
    """Return the messages of what cannot be."""
    from accel import Accelerator, PartialState
    from accel_state.errors import ConfigError

    messages = []
    for arguments in ({"mixed_precision": "fp16"}, {"mixed_precision": "no"}, {"fsdp_plugin": fsdp()}):
        if len(messages) == 2:
            PartialState()  # opens the device
        try:
            Accelerator(**arguments)
        except ConfigError as error:
            messages.append(str(error))
    return messages


CASES = {
    "operations": operations,
    "refusals": refusals,
    "single": accelerated,
    "spmd": spmd,
    "fsdp": lambda folder: accelerated(folder, plugin=fsdp()),
    "fsdp_ckpt": lambda folder: accelerated(folder, plugin=fsdp(xla_fsdp_grad_ckpt=True)),
    "bf16": lambda folder: accelerated(folder, mixed_precision="bf16"),
    "single_whole": lambda folder: accelerated(folder, dropout=0.2, save_in=1),
    "single_resumed": lambda folder: accelerated(folder, dropout=0.2, resume=True),
    "fsdp_whole": lambda folder: accelerated(folder, plugin=fsdp(), dropout=0.2, save_in=1),
    "fsdp_resumed": lambda folder: accelerated(folder, plugin=fsdp(), dropout=0.2, resume=True),
}

if __name__ == "__main__":
    case, place = sys.argv[1], Path(sys.argv[2])
    torch.save(CASES[case](place), place / f"{case}.pt")
