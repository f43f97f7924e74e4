"""Uses DeepSpeed in one process that is all of its run, and writes what came out.

With a second argument DeepSpeed gets on without the operators that it would compile.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from deepspeed_rows import begin
from deepspeed_use import config, refusal
from torch import nn

from accel import Accelerator, DeepSpeedPlugin
from accel_state import ConfigError


def prepared(
    stage: int,
    *,
    precision: str = "no",
    accumulate: int = 1,
    num_models: int = 1,
    rate: float = 0.1,
    **sections: Any,
) -> tuple[Accelerator, list[Any], list[Any]]:
    """Return as many linear models as requested, each with its optimizer."""
    accelerator = begin(
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config(stage, **sections)),
        gradient_accumulation_steps=accumulate,
        mixed_precision=precision,
    )
    pairs = [
        accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=rate))
        for model in linear(num_models)
    ]
    return accelerator, [model for model, _ in pairs], [optimizer for _, optimizer in pairs]


def linear(num_models: int = 1) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(8, 4, bias=False) for _ in range(num_models)]


def rows(num: int = 4) -> list[torch.Tensor]:
    return [torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(num)]


def weights(accelerator: Accelerator, models: Iterable[Any]) -> list[torch.Tensor]:
    found = [accelerator.get_state_dict(model)["weight"].float() for model in models]
    accelerator.free_memory()
    return found


def clip(stage: int) -> dict[str, Any]:
    """Clip the norm of complete gradients, and of some that are not finite; forget others."""
    accelerator, [model], [optimizer] = prepared(stage)
    first, second, *_ = rows()
    accelerator.backward(model(first).square().mean() * float("inf"))
    infinite = accelerator.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.zero_grad()
    accelerator.backward(model(second).square().sum())
    norm = accelerator.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return {"infinite": float(infinite), "norm": float(norm), "weights": weights(accelerator, [model])}


def measure_norms(stage: int) -> dict[str, Any]:
    """Clip one step, then take one without; count how often DeepSpeed computes a norm in each."""
    accelerator, [model], [optimizer] = prepared(stage)
    inner, calls, counts = optimizer.optimizer, [0], []
    measure = inner.get_grad_norm_direct

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return measure(*args, **kwargs)

    inner.get_grad_norm_direct = counted
    for batch, is_clipped in zip(rows(2), (True, False), strict=True):
        calls[0] = 0
        accelerator.backward(model(batch).square().sum())
        if is_clipped:
            accelerator.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        counts.append(calls[0])
    norm = float(model.get_global_grad_norm())
    return {"counts": counts, "norm": norm, "weights": weights(accelerator, [model])}


def gather_together() -> dict[str, Any]:
    """Count how often parameters are gathered for a full state."""
    import deepspeed

    original, entered = deepspeed.zero.GatheredParameters, []

    class Counted(original):  # type: ignore[misc, valid-type]
        def __enter__(self) -> Any:
            entered.append(len(self.params))
            return super().__enter__()

    accelerator = begin(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config(3)))
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    wanted = {name: value.clone() for name, value in model.state_dict().items()}
    model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    deepspeed.zero.GatheredParameters = Counted
    found = dict(accelerator.get_state_dict(model))
    deepspeed.zero.GatheredParameters = original
    accelerator.free_memory()
    return {"wanted": wanted, "found": found, "entered": entered}


class Rows(torch.optim.SGD):
    """Has state that belongs to no single value of a parameter."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["rows"] = torch.ones(2)
        return super().step(closure)


def save_odd_state(folder: Path) -> str:
    accelerator = begin(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config(1)))
    [bare] = linear()
    model, optimizer = accelerator.prepare(bare, Rows(bare.parameters(), lr=0.1))
    accelerator.backward(model(rows()[0]).square().mean())
    optimizer.step()
    said = refusal(lambda: accelerator.save_state(str(folder)), Exception)
    accelerator.free_memory()
    return said


def clip_by_groups(stage: int) -> str:
    """Clip what the prepared optimizer has for parameters."""
    accelerator, [model], [optimizer] = prepared(stage)
    accelerator.backward(model(rows()[0]).square().sum())
    own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    said = refusal(lambda: accelerator.clip_grad_norm_(own, 0.1))
    accelerator.free_memory()
    return said


def train_jointly(stage: int) -> list[torch.Tensor]:
    """Train two models by one loss, which is accumulated."""
    accelerator, models, optimizers = prepared(stage, accumulate=4, num_models=2)
    for batch in rows():
        with accelerator.accumulate(*models):
            accelerator.backward((models[0](batch) - models[1](batch)).square().mean())
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    return weights(accelerator, models)


def refuse_joint_loss() -> str:
    accelerator, [one, other], _ = prepared(0, num_models=2)
    said = refusal(lambda: accelerator.backward((one(rows()[0]) - other(rows()[0])).square().mean()))
    accelerator.free_memory()
    return said


def save_and_load(folder: Path, *, is_fused: bool) -> dict[str, Any]:
    """Go on from a checkpoint, in bf16 without ZeRO; what DeepSpeed does for its fused Adam, it does for any then."""
    from deepspeed.runtime import engine

    original = engine.FusedAdam
    if is_fused:
        engine.FusedAdam = torch.optim.AdamW  # type: ignore[misc]

    def run() -> tuple[Accelerator, Any, Any]:
        accelerator = begin(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config(0)), mixed_precision="bf16")
        model = nn.Sequential(*linear(2)[:1], nn.Linear(4, 3))
        return accelerator, *accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))

    def step(accelerator: Accelerator, model: Any, optimizer: Any, batch: torch.Tensor) -> None:
        accelerator.backward(model(batch.bfloat16()).square().mean())
        optimizer.step()
        optimizer.zero_grad()

    first, second, *_ = rows()
    saved = run()
    step(*saved, first)
    saved[0].save_state(str(folder))
    refused = refusal(
        lambda: saved[0].save_state(str(folder / "own"), checkpoint_format="deepspeed"), Exception
    )
    step(*saved, second)
    wanted = saved[0].get_state_dict(saved[1])
    kind = type(saved[1].optimizer).__name__
    saved[0].free_memory()
    resumed = run()
    resumed[0].load_state(str(folder))
    step(*resumed, second)
    found = resumed[0].get_state_dict(resumed[1])
    resumed[0].free_memory()
    engine.FusedAdam = original  # type: ignore[misc]
    return {"wanted": dict(wanted), "found": dict(found), "refused": refused, "kind": kind}


def follow_a_schedule_of_deepspeed() -> dict[str, Any]:
    from deepspeed.runtime.lr_schedules import WarmupLR

    accelerator = begin(
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config(1)), gradient_accumulation_steps=4
    )
    [model] = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = WarmupLR(optimizer, 0.0, 0.1, warmup_num_steps=100, warmup_type="linear")
    model, optimizer, prepared_schedule = accelerator.prepare(model, optimizer, schedule)
    for batch in [*rows(), *rows()]:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            prepared_schedule.step()
            optimizer.zero_grad()
    state = prepared_schedule.state_dict()
    accelerator.free_memory()
    return {"steps": schedule.last_batch_iteration + 1, "state": state}


class Seen(nn.Module):
    """Keeps the dtypes of what its forward sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.seen: dict[str, Any] = {}

    def forward(self, batch: torch.Tensor, *, timesteps: torch.Tensor) -> torch.Tensor:
        self.seen = {
            "timesteps": timesteps.tolist(),
            "weight": self.layer.weight.dtype,
            "is autocast": torch.is_autocast_enabled("cpu"),
        }
        return self.layer(batch)


def see_inputs(*, is_trained: bool, **sections: Any) -> dict[str, Any]:
    accelerator = begin(
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config(1, **sections)), mixed_precision="bf16"
    )
    model = Seen()
    objects = [model, torch.optim.SGD(model.parameters(), lr=0.1)] if is_trained else [model]
    accelerator.prepare(*objects)
    outer = accelerator._models[-1]
    batch = rows()[0] if sections else rows()[0].bfloat16()
    outputs = outer(batch, timesteps=torch.tensor([501.37, 999.0]))
    accelerator.free_memory()
    return {**model.seen, "outputs": outputs.dtype}


def compile_by_the_engine() -> bool:
    accelerator = begin(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config(1)), dynamo_backend="eager")
    [model] = linear()
    model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    is_compiled = model.is_compiled
    accelerator.free_memory()
    return is_compiled


def place_a_teacher() -> list[torch.dtype]:
    accelerator = begin(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config(2)), mixed_precision="bf16")
    teacher = nn.Linear(4, 4)
    teacher.scaled = nn.Parameter(torch.ones(4, 4).to(torch.float8_e4m3fn), requires_grad=False)
    teacher = accelerator.prepare(teacher)
    found = [teacher.weight.dtype, teacher.scaled.dtype]
    accelerator.free_memory()
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    if len(sys.argv) > 2:
        import deepspeed

        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
        assert deepspeed.__version__.strip() == sys.argv[2]
    results: dict[str, Any] = {
        "clip": {stage: clip(stage) for stage in (0, 1, 2, 3)},
        "norms": {stage: measure_norms(stage) for stage in (1, 2, 3)},
        "gathered": gather_together(),
        "odd": save_odd_state(folder / "odd"),
        "groups": {stage: clip_by_groups(stage) for stage in (1, 2, 3)},
        "joint": {stage: train_jointly(stage) for stage in (1, 2, 3)},
        "refused": refuse_joint_loss(),
        "saved": save_and_load(folder / "saved", is_fused=False),
        "fused": save_and_load(folder / "fused", is_fused=True),
        "schedule": follow_a_schedule_of_deepspeed(),
        "inputs": {is_trained: see_inputs(is_trained=is_trained) for is_trained in (True, False)},
        "autocast": see_inputs(is_trained=True, torch_autocast={"enabled": True, "dtype": "bfloat16"}),
        "compiled": compile_by_the_engine(),
        "teacher": place_a_teacher(),
        "managed": refusal(lambda: prepared(2, managed_gradient_accumulation=False), ConfigError),
    }
    torch.save(results, folder / "0.pt")


if __name__ == "__main__":
    main()
