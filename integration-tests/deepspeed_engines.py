"""Several engines in one run, saved and loaded: `deepspeed_checkpoints.py` calls what is here in each of its phases.

Two train, each with its own plugin and with the states of its optimizer on the CPU: adapters in a frozen model
under ZeRO 3, and a full model under ZeRO 2. A third, under ZeRO 3, is not trained.
"""

from __future__ import annotations

import torch
from deepspeed_runs import Net, distance, values_of
from torch import nn

from accel import Accelerator, DeepSpeedPlugin
from accel.utils import set_seed
from accel_state.runtime import reset_runtime


class Adapted(nn.Module):
    """A frozen model with adapters of low rank, as PEFT makes them; the sizes are none that two ranks divide."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.ModuleList(nn.Linear(7, 7).requires_grad_(False) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(7, 3, bias=False) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(3, 7, bias=False) for _ in range(3))

    def forward(self, rows):
        for frozen, down, up in zip(self.frozen, self.down, self.up, strict=True):
            rows = rows + torch.tanh(frozen(rows) + up(down(rows)))
        return rows


def plugin(**section):
    return DeepSpeedPlugin(
        hf_ds_config={
            "train_micro_batch_size_per_gpu": 4,
            "gradient_clipping": 0.0,
            "zero_optimization": {"stage3_param_persistence_threshold": 0, **section},
        }
    )


class Engines:
    """A new run with three engines."""

    def __init__(self, *, seed=0):
        reset_runtime(keep_process_group=True)
        on_cpu = {"device": "cpu"}
        self.accelerator = Accelerator(
            cpu=True,
            deepspeed_plugins={
                "adapted": plugin(stage=3, offload_optimizer=on_cpu, offload_param=on_cpu),
                "whole": plugin(stage=2, offload_optimizer=on_cpu),
                "teacher": plugin(stage=3),
            },
        )
        set_seed(seed)
        self.models, self.optimizers, self.schedulers = [], [], []
        for name, model in (("adapted", Adapted()), ("whole", Net())):
            self.accelerator.state.select_deepspeed_plugin(name)
            optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=0.02)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
            model, optimizer, scheduler = self.accelerator.prepare(model, optimizer, scheduler)
            self.models.append(model)
            self.optimizers.append(optimizer)
            self.schedulers.append(scheduler)
        self.accelerator.state.select_deepspeed_plugin("teacher")
        self.models.append(self.accelerator.prepare(Adapted()))

    def train(self, num_steps=2):
        rank, num_ranks = self.accelerator.process_index, self.accelerator.num_processes
        rows = torch.linspace(-1, 1, 56).view(8, 7).chunk(num_ranks)[rank]
        tokens = torch.arange(8).chunk(num_ranks)[rank]
        adapted, whole, teacher = self.models
        for _ in range(num_steps):
            with torch.no_grad():
                wanted = teacher(rows)
            self.accelerator.backward((adapted(rows) - wanted).square().mean())
            self.accelerator.backward(nn.functional.cross_entropy(whole(tokens), tokens))
            for optimizer, scheduler in zip(self.optimizers, self.schedulers, strict=True):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()

    def values(self):
        """Return what is trained of each engine, and the weights of the teacher."""
        trained = zip(self.models, self.optimizers, self.schedulers, strict=False)
        return {
            **{str(index): values_of(self.accelerator, *each) for index, each in enumerate(trained)},
            "teacher": weights_of(
                self.accelerator.strategy.model_tensors(self.accelerator.unwrap_model(self.models[-1]))
            ),
        }


def weights_of(state):
    return {
        name: value.fetch() if hasattr(value, "fetch") else value.clone() for name, value in state.items()
    }


def two(folder):
    run, found = Engines(), {}
    run.train()
    run.accelerator.save_state(folder / "engines")
    run.accelerator.save_state(folder / "trained", exclude_frozen_parameters=True)
    wanted = run.values()
    for index, model in enumerate(run.models):
        run.accelerator.save_model(model, folder / f"engine{index}")
        whole = run.accelerator.get_state_dict(model)
        if run.accelerator.is_main_process:
            state = wanted["teacher"] if index == 2 else wanted[str(index)]["model"]
            found[f"get_state_dict of engine {index}"] = distance(state, dict(whole))
    if run.accelerator.is_main_process:
        torch.save(wanted, folder / "engines.pt")
    run.train()
    later = run.values()
    other = Engines(seed=7)
    frozen_before = frozen_in(other.values())
    other.accelerator.load_state(folder / "trained", load_module_strict=False)
    found["frozen weights left as they are"] = distance(frozen_before, frozen_in(other.values()))
    found["trained weights of a checkpoint without frozen ones"] = distance(
        trained_in(wanted), trained_in(other.values())
    )
    other.accelerator.load_state(folder / "engines", verify=True)
    found["engines resumed"] = distance(wanted, other.values())
    other.train()
    found["engines two steps later"] = distance(later, other.values())
    return found


def one(folder):
    run = Engines(seed=7)
    run.accelerator.load_state(folder / "engines")
    found = {"engines on one rank": distance(torch.load(folder / "engines.pt"), run.values())}
    run.accelerator.save_state(folder / "one_engines")
    return found


def back(folder):
    run = Engines(seed=8)
    run.accelerator.load_state(folder / "one_engines")
    return {"engines on two ranks again": distance(torch.load(folder / "engines.pt"), run.values())}


def frozen_in(values):
    return {
        f"{index}.{name}": value
        for index in ("0", "1")
        for name, value in values[index]["model"].items()
        if name.startswith("frozen")
    }


def trained_in(values):
    frozen = frozen_in(values)
    return {
        index: {
            **values[index],
            "model": {
                name: value
                for name, value in values[index]["model"].items()
                if f"{index}.{name}" not in frozen
            },
        }
        for index in ("0", "1")
    }
