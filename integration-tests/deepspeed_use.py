"""Uses DeepSpeed on each rank in the other ways that are documented, and writes what came out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from deepspeed_rows import begin, trained
from torch import nn
from torch.utils.data import DataLoader

from accel import Accelerator, DeepSpeedPlugin
from accel.local_sgd import LocalSGD
from accel_backends import DummyOptim, DummyScheduler
from accel_state import ConfigError, StateError
from tools.harness.models import make_batches, make_model

ADAMW = {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto", "torch_adam": True}}
WARMUP = {
    "type": "WarmupDecayLR",
    "params": {
        "warmup_min_lr": "auto",
        "warmup_max_lr": "auto",
        "warmup_num_steps": "auto",
        "total_num_steps": "auto",
        "warmup_type": "linear",
    },
}


def config(stage: int, **sections: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage}, "train_micro_batch_size_per_gpu": 4, **sections}


def refusal(call: Callable[[], Any], kind: type[Exception] = ConfigError) -> str:
    """Return the message of the error of a call."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("There was no error.")


def prepared(stage: int = 2, *, accumulate: int = 1, **sections: Any) -> tuple[Accelerator, Any, Any]:
    accelerator = begin(
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config(stage, **sections)),
        gradient_accumulation_steps=accumulate,
    )
    model = make_model("odd")
    return accelerator, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))


def my_rows(accelerator: Accelerator, num: int) -> list[torch.Tensor]:
    return make_batches(2 * num)[accelerator.process_index :: 2]


def whole(accelerator: Accelerator, model: Any) -> dict[str, Any]:
    state = dict(accelerator.get_state_dict(model))
    accelerator.free_memory()
    return state


def train_with_sections_of_the_config() -> dict[str, Any]:
    """Both from the config, then the other documented combinations."""
    found = {}
    for name, sections in {
        "both": {"optimizer": ADAMW, "scheduler": WARMUP},
        "scheduler": {"scheduler": {**WARMUP, "params": {**WARMUP["params"], "warmup_max_lr": 0.02}}},
        "callable": {"optimizer": ADAMW},
    }.items():
        accelerator = begin(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config(2, **sections)))
        model = make_model("odd")
        is_dummy = "optimizer" in sections
        optimizer: Any = (
            DummyOptim(model.parameters(), lr=0.02, weight_decay=0.1)
            if is_dummy
            else torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)
        )
        by_steps = {"total_num_steps": 16, "warmup_num_steps": 2}
        by_call = {"lr_scheduler_callable": lambda made: torch.optim.lr_scheduler.ExponentialLR(made, 0.5)}
        scheduler: Any = DummyScheduler(optimizer, **(by_steps if "scheduler" in sections else by_call))
        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
        rates = []
        for batch in my_rows(accelerator, 4):
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            rates.append(round(optimizer.param_groups[0]["lr"], 6))
        params = accelerator.strategy.engines.of([model])[0].engine.config.get("optimizer", {}).get("params")
        found[name] = {"rates": rates, "params": params, "state": whole(accelerator, model)}
    return found


def handle_gradients(stage: int) -> dict[str, Any]:
    """What a loop may do next to the ordinary, and what it may not."""
    found: dict[str, Any] = {}
    accelerator, model, optimizer = prepared(stage)
    first, second, third = my_rows(accelerator, 3)
    before = {name: value.clone() for name, value in accelerator.get_state_dict(model).items()}

    def backward(batch: torch.Tensor) -> None:
        accelerator.backward(model(batch).square().mean())

    optimizer.step()  # nothing is there to be stepped
    found["first norm"] = model.get_global_grad_norm()
    backward(first)
    found["second backward"] = refusal(lambda: backward(second), StateError)
    optimizer.zero_grad()
    accelerator.backward(model(second).square().mean() * float("inf"))
    optimizer.step()
    found["skipped"] = accelerator.optimizer_step_was_skipped
    found["unchanged"] = all(
        value.equal(before[name]) for name, value in accelerator.get_state_dict(model).items()
    )
    with accelerator.no_sync(model):
        accelerator.backward(model(second).square().mean() / 2)
    found["partial norm"] = accelerator.clip_grad_norm_(model.parameters(), 1.0)
    accelerator.backward(model(third).square().mean() / 2)
    found["subset"] = refusal(lambda: accelerator.clip_grad_norm_(list(model.parameters())[:2], 1.0))
    found["max norm"] = refusal(lambda: accelerator.clip_grad_norm_(model.parameters(), 1.0, norm_type=1))
    found["value"] = refusal(lambda: accelerator.clip_grad_value_(model.parameters(), 1.0))
    found["local sgd"] = refusal(lambda: LocalSGD(accelerator, model, 2))
    optimizer.step()
    found["stepped"] = not accelerator.optimizer_step_was_skipped
    found["by hand"] = whole(accelerator, model)
    return found


def weigh_items(stage: int) -> dict[str, Any]:
    accelerator, model, optimizer = prepared(stage, accumulate=2)
    for index, batch in enumerate(my_rows(accelerator, 4)):
        rows = batch[: 1 + (index + accelerator.process_index) % 4]
        with accelerator.accumulate(model):
            accelerator.backward(model(rows).square().mean(), num_items=len(rows))
            accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
    return whole(accelerator, model)


def distil() -> dict[str, Any]:
    """A teacher under ZeRO 3, which is not trained, next to a student under ZeRO 2."""
    accelerator = begin(
        deepspeed_plugins={
            "student": DeepSpeedPlugin(hf_ds_config=config(2)),
            "teacher": DeepSpeedPlugin(hf_ds_config={"zero_optimization": {"stage": 3}}),
        }
    )
    student, teacher = make_model("odd"), make_model("odd", seed=8)
    student, optimizer = accelerator.prepare(student, torch.optim.SGD(student.parameters(), lr=0.05))
    accelerator.state.select_deepspeed_plugin("teacher")
    teacher = accelerator.prepare(teacher)
    is_cut = all(parameter.numel() == 0 for parameter in accelerator.unwrap_model(teacher).parameters())
    teacher.eval()
    for batch in my_rows(accelerator, 3):
        with torch.no_grad():
            wanted = teacher(batch)
        accelerator.backward((student(batch) - wanted).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return {"is cut": is_cut, "state": whole(accelerator, student)}


def train_two() -> dict[str, Any]:
    """Two models in turn and together, by one Accelerator and by two."""
    found = {}
    for name in ("one", "two"):
        first = begin(deepspeed_plugin=DeepSpeedPlugin(zero_stage=2))
        second = first if name == "one" else Accelerator()
        loader = DataLoader(torch.cat(make_batches(6)), batch_size=4)
        ours, theirs = make_model("odd"), make_model("odd", seed=8)
        ours, our_optimizer, loader = first.prepare(ours, torch.optim.SGD(ours.parameters(), lr=0.05), loader)
        other_loader = DataLoader(torch.cat(make_batches(6)), batch_size=4)
        theirs, their_optimizer, _ = second.prepare(
            theirs, torch.optim.SGD(theirs.parameters(), lr=0.05), other_loader
        )
        for batch in loader:
            loss = theirs(batch).square().mean()
            first.backward(ours(batch).square().mean())
            our_optimizer.step()
            our_optimizer.zero_grad()
            second.backward(loss)
            their_optimizer.step()
            their_optimizer.zero_grad()
        if name == "one":
            batch = make_batches(2)[first.process_index]
            first.backward((ours(batch) - theirs(batch)).square().mean())
            norm = first.clip_grad_norm_([*ours.parameters(), *theirs.parameters()], 0.05)
            for optimizer in (our_optimizer, their_optimizer):
                optimizer.step()
            found["norm"] = float(norm)
        found[name] = [dict(first.get_state_dict(ours)), dict(second.get_state_dict(theirs))]
        first.free_memory()
        second.free_memory()
    return found


def evaluate_first(stage: int) -> dict[str, Any]:
    accelerator = begin(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config(stage)))
    bare = make_model("odd")
    batch = make_batches(1)[0]
    with torch.no_grad():
        outputs = accelerator.prepare(bare)(batch)
    model, optimizer = accelerator.prepare(bare, torch.optim.SGD(bare.parameters(), lr=0.05))
    with torch.no_grad():
        again = model(batch)
    accelerator.backward(model(my_rows(accelerator, 1)[0]).square().mean())
    optimizer.step()
    return {"outputs": outputs, "again": again, "state": whole(accelerator, model)}


class Expert(nn.Module):
    """A linear layer by another name."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(7, 7)

    def forward(self, rows: torch.Tensor) -> Any:
        return self.inner(rows)


def make_experts() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 7), Expert(), nn.Linear(7, 1))


def keep_layers_whole() -> dict[str, Any]:
    plugin = DeepSpeedPlugin(hf_ds_config=config(3), transformer_moe_cls_names="Expert")
    accelerator = begin(deepspeed_plugin=plugin)
    layers = make_experts()
    model, optimizer = accelerator.prepare(layers, torch.optim.SGD(trained(layers), lr=0.05))
    marks = [bool(getattr(module, "_z3_leaf", False)) for module in layers]
    for batch in my_rows(accelerator, 2):
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    return {"marks": marks, "state": whole(accelerator, model)}


def feed_another_dtype() -> str:
    accelerator, model, _ = prepared(1, bf16={"enabled": True})
    return refusal(lambda: model(my_rows(accelerator, 1)[0]))


def main() -> None:
    results = {
        "sections": train_with_sections_of_the_config(),
        "gradients": {stage: handle_gradients(stage) for stage in (1, 2, 3)},
        "items": {stage: weigh_items(stage) for stage in (0, 1, 2, 3)},
        "distil": distil(),
        "two": train_two(),
        "evaluate": {stage: evaluate_first(stage) for stage in (2, 3)},
        "layers": keep_layers_whole(),
        "dtypes": feed_another_dtype(),
    }
    accelerator = begin()
    torch.save(results, Path(sys.argv[1]) / f"{accelerator.process_index}.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main()
