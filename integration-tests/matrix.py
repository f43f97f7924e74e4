"""A cell of the matrix: a small decoder trains along an axis with a feature, and with plain PyTorch in one process."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from accel import Accelerator, DeepSpeedPlugin, DistributedDataParallelKwargs, ParallelismConfig, cpu_offload
from accel.utils import FullyShardedDataParallelPlugin, GradScalerKwargs, broadcast_object_list
from accel_state import PipelineParallelConfig, TorchContextParallelConfig
from accel_state.errors import AccelError
from accel_state.runtime import reset_runtime
from tools.harness.models import ExpertBlock, Shared, SharedBlock, StackedExperts

NUM_STEPS, ACCUMULATE, NUM_ROWS, LENGTH, RATE = 3, 2, 2, 24, 0.2


@dataclass(frozen=True)
class Axis:
    """How the ranks of a column work together."""

    num_ranks: int
    sizes: dict[str, int] = field(default_factory=dict)
    """Of `ParallelismConfig`."""
    num_data_ranks: int = 1
    """Ranks with batches of their own."""
    is_fsdp: bool = True
    zero_stage: int = 0


AXES = {
    "single": Axis(1, is_fsdp=False),
    "DDP": Axis(2, num_data_ranks=2, is_fsdp=False),
    "FSDP 2": Axis(3, num_data_ranks=3),
    "HSDP": Axis(4, {"dp_replicate_size": 2, "dp_shard_size": 2}, num_data_ranks=4),
    "TP": Axis(2, {"tp_size": 2}),
    "CP": Axis(2, {"cp_size": 2}),
    "SP": Axis(2, {"sp_size": 2}),
    "EP": Axis(2, {"ep_size": 2}, num_data_ranks=2),
    "PP": Axis(2, {"pp_size": 2}),
    "DeepSpeed 1": Axis(2, num_data_ranks=2, is_fsdp=False, zero_stage=1),
    "DeepSpeed 2": Axis(2, num_data_ranks=2, is_fsdp=False, zero_stage=2),
    "DeepSpeed 3": Axis(2, num_data_ranks=2, is_fsdp=False, zero_stage=3),
    "TP + FSDP": Axis(4, {"tp_size": 2, "dp_shard_size": 2}, num_data_ranks=2),
    "CP + FSDP": Axis(4, {"cp_size": 2, "dp_shard_size": 2}, num_data_ranks=2),
    "SP + FSDP": Axis(4, {"sp_size": 2, "dp_shard_size": 2}, num_data_ranks=2),
    "EP + FSDP": Axis(4, {"ep_size": 2, "dp_shard_size": 4}, num_data_ranks=4),
    "PP + FSDP": Axis(4, {"pp_size": 2, "dp_shard_size": 2}, num_data_ranks=2),
    "TP 4": Axis(4, {"tp_size": 4}),
    "CP 4": Axis(4, {"cp_size": 4}),
    "SP 4": Axis(4, {"sp_size": 4}),
    "EP 3": Axis(3, {"ep_size": 3}, num_data_ranks=3),
}
FEATURES: dict[str, dict[str, Any]] = {
    "bf16": {"mixed_precision": "bf16"},
    "fp16": {"mixed_precision": "fp16"},
    "compile": {"dynamo_backend": "aot_eager"},
    "activation checkpointing": {"is_checkpointed": True},
    "CPU offload": {"is_offloaded": True},
    "accumulation with `num_items`": {"has_uneven_labels": True},
    "clip": {"max_norm": 0.1},
    "full resume": {"checkpoint_format": "full"},
    "sharded resume": {"checkpoint_format": "sharded"},
    "evaluation in between": {"is_evaluated": True},
    "PEFT": {"has_adapter": True},
    "save on the main process": {"saves_alone": True},
    "unused parameters": {"has_unused": True},
    "late parameters": {"is_late": True},
    "Muon": {"uses_muon": True},
}
"""Settings of the Accelerator, and what else a run does."""


class Experts(ExpertBlock):
    """Takes tokens of several sequences."""

    def forward(self, hidden: Tensor) -> Any:
        return super().forward(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])


class Decoder(nn.Module):
    """A language model, whose second layer has experts, if it is to have some."""

    def __init__(self, *, has_experts: bool, is_checkpointed: bool, has_unused: bool) -> None:
        super().__init__()
        self.is_checkpointed = is_checkpointed
        self.embed, self.places = nn.Embedding(19, 12), nn.Embedding(LENGTH, 12)
        self.blocks = nn.ModuleList(SharedBlock(0.0) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 19)
        self.parallel_plan = {**Shared.parallel_plan, "attention": ["blocks.*.attention"]}
        if has_experts:
            for block in self.blocks:
                block.rows = Experts(12, 6, StackedExperts)
            self.parallel_plan["experts"] = {"blocks.*.rows.experts": "ep_dispatch_experts"}
            self.parallel_plan["tensor"] = {}
        if has_unused:
            self.sometimes, self.never = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, input_ids: Tensor, position_ids: Tensor, kind: Tensor) -> Any:
        """Return the logits for ``(batch, sequence)``."""
        hidden = self.embed(input_ids) + self.places(position_ids)
        if hasattr(self, "sometimes") and kind.any():
            hidden = hidden + self.sometimes(hidden)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False) if self.is_checkpointed else block(hidden)
        return self.head(self.norm(hidden))


def make_model(
    options: dict[str, Any], *, has_experts: bool, has_checkpoints: bool, seed: int = 0
) -> nn.Module:
    torch.manual_seed(seed)
    model: nn.Module = Decoder(
        has_experts=has_experts, is_checkpointed=has_checkpoints, has_unused="has_unused" in options
    )
    if "has_adapter" in options:
        import peft

        lora = peft.LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=False)
        model = peft.get_peft_model(model, lora)
    if "is_late" in options:
        model.head.requires_grad_(False)
    return model


def make_optimizers(model: nn.Module, options: dict[str, Any]) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the blocks, if requested, and an optimizer with two groups for the others."""
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
    inner = [
        name for name, one in trained.items() if "uses_muon" in options and "blocks" in name and one.ndim == 2
    ]
    muon = [torch.optim.Muon([trained.pop(name) for name in inner], lr=RATE / 10)] if inner else []
    others = list(trained.values())
    groups = [{"params": others[::2], "weight_decay": 0.1}, {"params": others[1::2], "lr": RATE / 2}]
    return [*muon, torch.optim.SGD(groups, lr=RATE, momentum=0.9)]


def add_late_parameters(model: nn.Module, optimizers: list[Any]) -> None:
    """Train the head from now on."""
    head = [one.requires_grad_(True) for name, one in model.named_parameters() if "head." in name]
    optimizers[0].add_param_group({"params": head})


def samples(num_batches: int, *, has_uneven_labels: bool) -> list[dict[str, Tensor]]:
    """Return sequences; each eighth has as many labels, or each sequence another number."""
    ids = torch.randint(1, 19, (num_batches * NUM_ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[:, :: LENGTH // 8] = -100  # what precedes an eighth has none
    for row, of_row in enumerate(labels):
        if has_uneven_labels:
            of_row[: row * 5 % 8] = -100
    kinds = torch.arange(len(ids)) // NUM_ROWS % 2
    return [
        {"input_ids": one, "labels": two, "kind": kind}
        for one, two, kind in zip(ids, labels, kinds, strict=True)
    ]


def num_labels(batch: dict[str, Tensor]) -> Tensor:
    return (targets_of(batch) != -100).sum()


def targets_of(batch: dict[str, Tensor]) -> Tensor:
    if "shift_labels" in batch:  # of loaders that shard sequences
        return batch["shift_labels"]
    return nn.functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:].contiguous()


def token_losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the loss of each label, ``(batch, sequence)``, 0 without."""
    ids = batch["input_ids"]
    positions = torch.arange(ids.shape[1], device=ids.device).expand(len(ids), -1)
    logits = model(input_ids=ids, position_ids=batch.get("position_ids", positions), kind=batch["kind"])
    return nn.functional.cross_entropy(logits.transpose(1, 2).float(), targets_of(batch), reduction="none")


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return token_losses(model, batch).sum() / num_labels(batch).clamp(min=1)


def train_alone(feature: str, num_data_ranks: int, has_experts: bool, device: torch.device) -> dict[str, Any]:
    """Train with plain PyTorch on the micro-batches of all ranks."""
    options = FEATURES[feature]
    model = make_model(options, has_experts=has_experts, has_checkpoints=False).to(device)
    optimizers = make_optimizers(model, options)
    window = ACCUMULATE * num_data_ranks
    rows = samples(NUM_STEPS * window, has_uneven_labels="has_uneven_labels" in options)
    batches = [
        {name: value.to(device) for name, value in batch.items()}
        for batch in DataLoader(rows, batch_size=NUM_ROWS)
    ]
    precision = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(options.get("mixed_precision", ""))
    found: dict[str, Any] = {"start": copied(model), "losses": [], "evaluated": []}
    for step in range(NUM_STEPS):
        micro_batches = batches[step * window : (step + 1) * window]
        total = sum(num_labels(batch) for batch in micro_batches)
        for number in range(0, window, num_data_ranks):
            together = micro_batches[number : number + num_data_ranks]
            losses = []
            for batch in together:
                with torch.autocast(device.type, precision) if precision else nullcontext():
                    losses.append(loss_of(model, batch) * num_labels(batch))
                (losses[-1] / total).backward()
            found["losses"].append((sum(losses) / sum(num_labels(batch) for batch in together)).item())
        if "max_norm" in options:
            nn.utils.clip_grad_norm_(model.parameters(), options["max_norm"])
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if "is_evaluated" in options:
            with torch.no_grad():
                found["evaluated"] += [loss_of(model, batch).expand(NUM_ROWS) for batch in batches[:4]]
        if "saves_alone" in options and step == 1:
            found["saved"] = copied(model)
        if "is_late" in options and step == 0:
            add_late_parameters(model, optimizers)
    return found | {"weights": copied(model)}


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}


class Run:
    """A prepared decoder along an axis."""

    def __init__(self, axis: str, feature: str, device: torch.device, folder: Path, *, seed: int = 0) -> None:
        self.axis, self.options = AXES[axis], FEATURES[feature]
        self.device, self.folder = device, folder
        reset_runtime(keep_process_group=True)
        self.accelerator = accelerator = Accelerator(**self.arguments())
        model = make_model(
            self.options,
            has_experts="ep_size" in self.axis.sizes,
            has_checkpoints="is_checkpointed" in self.options and not self.axis.is_fsdp,
            seed=seed,
        )
        if "is_offloaded" in self.options and not (self.axis.is_fsdp or self.axis.zero_stage):
            cpu_offload(model, execution_device=accelerator.device)
        optimizers = make_optimizers(model, self.options)
        uneven = "has_uneven_labels" in self.options
        num = NUM_STEPS * ACCUMULATE * self.axis.num_data_ranks
        rows = samples(num, has_uneven_labels=uneven)
        loaders = [DataLoader(some, batch_size=NUM_ROWS) for some in (rows, rows[: 4 * NUM_ROWS])]
        self.model, self.loader, self.evaluation, *self.optimizers = accelerator.prepare(
            model, *loaders, *optimizers
        )

    def arguments(self) -> dict[str, Any]:
        """Return those of the Accelerator."""
        sizes, options = self.axis.sizes, self.options
        arguments = {name: options[name] for name in ("mixed_precision", "dynamo_backend") if name in options}
        arguments |= {"cpu": self.device.type == "cpu", "gradient_accumulation_steps": ACCUMULATE}
        if options.get("mixed_precision") == "fp16" and not self.axis.zero_stage:
            arguments["kwargs_handlers"] = [GradScalerKwargs(init_scale=256.0)]
        if "has_unused" in options and not self.axis.sizes and not self.axis.is_fsdp:
            arguments["kwargs_handlers"] = [DistributedDataParallelKwargs(find_unused_parameters=True)]
        if sizes:
            arguments["parallelism_config"] = ParallelismConfig(
                **sizes,
                sp_backend="torch",
                pp_handler=PipelineParallelConfig("1f1b", NUM_ROWS) if "pp_size" in sizes else None,
                cp_handler=TorchContextParallelConfig(cuts_batches=True) if "cp_size" in sizes else None,
            )
        is_offloaded = "is_offloaded" in options
        if self.axis.is_fsdp:
            arguments["fsdp_plugin"] = FullyShardedDataParallelPlugin(
                fsdp_version=2,
                cpu_offload=is_offloaded,
                activation_checkpointing="is_checkpointed" in options,
            )
        if self.axis.zero_stage:
            if "dynamo_backend" in arguments:
                arguments["dynamo_backend"] = "eager"  # as the page says
            arguments["deepspeed_plugin"] = DeepSpeedPlugin(
                zero_stage=self.axis.zero_stage,
                offload_optimizer_device="cpu" if is_offloaded else None,
                offload_param_device="cpu" if is_offloaded and self.axis.zero_stage == 3 else None,
            )
        return arguments

    def train(self) -> dict[str, Any]:
        """Train on the batches that are left, and return what came out."""
        accelerator, options = self.accelerator, self.options
        found: dict[str, Any] = {"losses": [], "evaluated": []}
        for batch in self.loader:
            with accelerator.accumulate(self.model):
                loss = self.backward(batch)
                if "max_norm" in options and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(self.model.parameters(), options["max_norm"])
                for optimizer in self.optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            summed, num = accelerator.reduce(torch.stack([loss * num_labels(batch), num_labels(batch)]))
            found["losses"].append((summed / num).item())
            if accelerator.sync_gradients:
                found |= self.between_steps(len(found["losses"]) // ACCUMULATE, found)
        state = accelerator.get_state_dict(self.model)
        return found | {"weights": {name: value.cpu() for name, value in state.items()}}

    def backward(self, batch: dict[str, Tensor]) -> Tensor:
        """Compute the gradients of a micro-batch and return its loss."""
        uneven = "has_uneven_labels" in self.options
        if "pp_size" in self.axis.sizes:
            return self.accelerator.forward_backward(
                self.model, batch, loss_of, num_labels if uneven else None
            )
        loss = loss_of(self.model, batch)
        self.accelerator.backward(loss, **({"num_items": num_labels(batch)} if uneven else {}))
        return loss.detach()

    def between_steps(self, step: int, found: dict[str, Any]) -> dict[str, Any]:
        """Do what the feature does after this many steps."""
        accelerator, options = self.accelerator, self.options
        if "is_evaluated" in options:
            self.model.eval()
            with torch.no_grad():
                for batch in self.evaluation:
                    found["evaluated"].append(accelerator.gather_for_metrics(self.evaluate(batch)).cpu())
            self.model.train()
        if "is_late" in options and step == 1:
            add_late_parameters(self.model, self.optimizers)
        if "checkpoint_format" in options and step == 2:
            format_name = options["checkpoint_format"]
            if self.axis.zero_stage and format_name == "sharded":
                format_name = "deepspeed"
            accelerator.save_state(str(self.folder / "state"), checkpoint_format=format_name)
        if "saves_alone" in options and step == 2:
            return {"saved": self.save_alone()}
        return {}

    def save_alone(self) -> dict[str, Tensor]:
        """Save the weights on the main process, and return those that are in the file."""
        errors: list[Exception | None] = [None]
        with pytest.MonkeyPatch.context() as patch:
            for name in ("WAIT_S", "ALL_RANKS_WAIT_S"):
                patch.setattr(f"accel_checkpoint.saving.saver.{name}", 1.0)
            if self.accelerator.is_main_process:
                try:
                    self.accelerator.save_model(self.model, str(self.folder))
                except AccelError as error:
                    errors = [error]
        broadcast_object_list(errors)
        if errors[0] is not None:
            raise errors[0]
        return load_file(self.folder / "model.safetensors")

    def evaluate(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the loss of a batch for each of its rows."""
        if "pp_size" in self.axis.sizes:
            return self.accelerator.forward_backward(self.model, batch, loss_of).expand(NUM_ROWS)
        return loss_of(self.model, batch).expand(NUM_ROWS)


def run(axis: str, feature: str, device: torch.device, folder: Path) -> dict[str, Any]:
    """Train along the axis as a user would, in each of its ranks; where the run is resumed, return the resumed one."""
    run = Run(axis, feature, device, folder)
    found = run.train()
    if "checkpoint_format" in FEATURES[feature]:
        run = Run(axis, feature, device, folder, seed=99)
        run.accelerator.load_state(str(folder / "state"), restore_loaders=True)
        resumed = run.train()
        assert resumed["losses"] == found["losses"][-ACCUMULATE:]
        found["weights"] = resumed["weights"]
    return found


def differences(found: dict[str, Any], expected: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield how far a run is from one process, relative to the losses and to how far the weights have moved."""
    losses = zip(found["losses"], expected["losses"], strict=True)
    yield "losses", max(abs(ours - theirs) / theirs for ours, theirs in losses)
    if expected["evaluated"]:
        ours, theirs = (torch.cat(each["evaluated"]).cpu() for each in (found, expected))
        yield "evaluation", ((ours - theirs).norm() / theirs.norm()).item()
    for name in ("weights", "saved"):
        if name in expected:
            assert found[name].keys() == expected[name].keys()
            moved = [(expected[name][key] - value).norm() for key, value in expected["start"].items()]
            apart = [(expected[name][key] - found[name][key].float()).norm() for key in expected["start"]]
            yield name, math.hypot(*apart) / math.hypot(*moved)
