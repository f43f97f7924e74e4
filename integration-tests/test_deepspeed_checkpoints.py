"""What DeepSpeed engines were when they were saved they are again, on any number of ranks and in any strategy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed_runs import assert_equal, begin, plugin, steps, trained
from safetensors.torch import load_file
from torch import nn

from accel import FullyShardedDataParallelPlugin
from accel.utils import set_seed
from accel_backends.unwrap import stepped_optimizer

pytestmark = pytest.mark.engine("deepspeed")
FILE = "pytorch_model/zero_pp_rank_{}_mp_rank_00_{}_states.pt"


class Net(nn.Module):
    """Tied and frozen weights, dropout, and sizes that two ranks do not divide."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up, self.drop = nn.Embedding(11, 7), nn.Linear(7, 33), nn.Dropout(0.1)
        self.frozen = nn.Linear(33, 7).requires_grad_(False)
        self.head = nn.Linear(7, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor([2.0]))

    def forward(self, tokens: torch.Tensor) -> Any:
        hidden = self.drop(torch.relu(self.up(self.embed(tokens))))
        return self.head(self.frozen(hidden)) * self.scale


class Adapted(nn.Module):
    """A frozen model with adapters of low rank, as PEFT makes them; the sizes are none that two ranks divide."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.ModuleList(nn.Linear(7, 7).requires_grad_(False) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(7, 3, bias=False) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(3, 7, bias=False) for _ in range(3))

    def forward(self, tokens: torch.Tensor) -> Any:
        rows = tokens[:, None] / 11 + torch.arange(7) / 7
        for frozen, down, up in zip(self.frozen, self.down, self.up, strict=True):
            rows = rows + torch.tanh(frozen(rows) + up(down(rows)))
        return rows


ON_CPU = {"device": "cpu"}
ENGINES: dict[str, Any] = {
    **{f"zero{stage}": {"stage": stage, "stage3_param_persistence_threshold": 40} for stage in range(4)},
    "adapted": {"stage": 3, "offload_optimizer": ON_CPU, "offload_param": ON_CPU},
    "offloaded": {"stage": 2, "offload_optimizer": ON_CPU},
    "teacher": {"stage": 3, "stage3_param_persistence_threshold": 0},
}
STAGES = ("zero0", "zero1", "zero2", "zero3")
SEVERAL = ("adapted", "offloaded", "teacher")
"""Engines of one run, each with a plugin; the last is not trained."""


class Run:
    """A new run of engines, or of DDP or FSDP 2."""

    def __init__(self, *kinds: str, seed: int = 0, rate: float = 0.02) -> None:
        plugins = {kind: plugin(sections=None, **ENGINES[kind]) for kind in kinds if kind in ENGINES}
        options: dict[str, Any] = {"deepspeed_plugins": plugins} if plugins else {}
        if kinds == ("fsdp2",):
            options["fsdp_plugin"] = FullyShardedDataParallelPlugin(fsdp_version=2)
        self.accelerator = begin(None, **options)
        set_seed(seed)
        self.models, self.stepped = [], []
        for kind in kinds:
            if plugins:
                self.accelerator.state.select_deepspeed_plugin(kind)
            model: Any = Adapted() if kind in ("adapted", "teacher") else Net()
            if kind == "teacher":
                self.models.append(self.accelerator.prepare(model))
                continue
            first, *rest = trained(model)
            groups = [{"params": [first], "lr": rate / 2}, {"params": rest}]
            optimizer = torch.optim.AdamW(groups, lr=rate)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
            model, *stepped = self.accelerator.prepare(model, optimizer, scheduler)
            self.models.append(model)
            self.stepped.append(stepped)

    def train(self) -> Any:
        """Take two steps, and return all values after them."""
        tokens = torch.arange(8).chunk(self.accelerator.num_processes)[self.accelerator.process_index]
        for _ in range(2):
            for model, stepped in zip(self.models, self.stepped, strict=False):
                self.accelerator.backward(model(tokens).square().mean())
                steps(*stepped)
        return self.values()

    def values(self) -> Any:
        """Return the weights of each model, what its optimizer keeps of them, and how far its scheduler is."""
        strategy, found = self.accelerator.strategy, {}
        for number, model in enumerate(self.models):
            one: dict[str, Any] = {"model": strategy.model_tensors(self.accelerator.unwrap_model(model))}
            if number < len(self.stepped):
                optimizer, scheduler = self.stepped[number]
                state = strategy.optimizer_tensors(stepped_optimizer(optimizer))
                one["optimizer"] = state["state"]
                one["rates"] = [group["lr"] for group in state["param_groups"]]
                one["scheduler"] = scheduler.state_dict()["last_epoch"]
            found[number] = one
        return plain(found)

    def save(self, folder: Path, **options: Any) -> Any:
        """Save, and return what a load must bring back."""
        self.accelerator.save_state(str(folder), **options)
        return self.values()

    def assert_loads(self, folder: Path, wanted: Any, **options: Any) -> None:
        self.accelerator.load_state(str(folder), **options)
        assert_equal(self.values(), wanted)


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    for fetch in ("fetch", "full_tensor"):
        if hasattr(value, fetch):
            value = getattr(value, fetch)()
    return value.clone() if isinstance(value, torch.Tensor) else value


def save_on_two(kinds: tuple[str, ...], folder: Path) -> None:
    """Save during training, and continue in another run."""
    run = Run(*kinds)
    run.train()
    is_background = kinds == ("zero1",)
    handle = run.accelerator.save_state(str(folder / "saved"), blocking=not is_background)
    if is_background:
        handle.wait()
    wanted = run.save(folder / "full", checkpoint_format="full")
    run.accelerator.save_state(str(folder / "trained"), exclude_frozen_parameters=True)
    for number, model in enumerate(run.models):
        run.accelerator.save_model(model, str(folder / f"weights{number}"))
        state = run.accelerator.get_state_dict(model)
        if run.accelerator.is_main_process:
            assert_equal(dict(state), wanted[number]["model"])
            weights = load_file(folder / f"weights{number}" / "model.safetensors")
            ties = ["head.weight"] if "head.weight" in state else []
            assert len(weights) == len(state) - len(ties)  # tied ones are there once
            assert_equal(weights, {name: state[name] for name in weights})
    if run.accelerator.is_main_process:
        torch.save(wanted, folder / "wanted.pt")
    later = run.train()
    other = Run(*kinds, seed=7, rate=0.5)
    before = other.values()
    other.accelerator.load_state(str(folder / "trained"), load_module_strict=False)
    for number, one in other.values().items():
        assert one["model"].keys() == wanted[number]["model"].keys()
        for name, value in one["model"].items():
            is_left_out = name.startswith("frozen") and number < len(run.stepped)
            assert_equal(value, (before if is_left_out else wanted)[number]["model"][name])
    other.assert_loads(folder / "saved", wanted, verify=True)
    assert_equal(other.train(), later)


def load_on_one(folder: Path, kinds: tuple[str, ...]) -> None:
    wanted = torch.load(folder / "wanted.pt")
    run = Run(*kinds, seed=7)
    run.assert_loads(folder / "saved", wanted)
    run.accelerator.save_state(str(folder / "one"))


def load_on_two_again(folder: Path, kinds: tuple[str, ...]) -> None:
    Run(*kinds, seed=8).assert_loads(folder / "one", torch.load(folder / "wanted.pt"))


@pytest.mark.parametrize("kinds", [*((stage,) for stage in STAGES), SEVERAL], ids="-".join)
def test_what_was_saved_is_loaded_bit_for_bit_on_two_ranks_one_and_two_again(world, tmp_path, kinds):
    world(2).run(save_on_two, kinds, tmp_path)
    world(1).run(load_on_one, tmp_path, kinds)
    world(2).run(load_on_two_again, tmp_path, kinds)
    if kinds in (("zero3",), SEVERAL):
        content = torch.load(tmp_path / "trained" / FILE.format(0, "model"), weights_only=False)
        assert content["module"]
        assert not content.get("frozen_param_fragments")
        assert not [name for name in content["module"] if name.startswith("frozen")]
        manifest = json.loads((tmp_path / "saved" / "accel_checkpoint.json").read_text())
        assert manifest["model_format"] == "deepspeed"
        writers = {file["name"]: file["rank"] for file in manifest["files"]}
        for rank in range(2):
            assert writers[FILE.format(rank, "model")] == writers[FILE.format(rank, "optim")] == rank
        assert {"latest", "zero_to_fp32.py", "pytorch_model/optimizer_0.json"} <= writers.keys()


def exchange(stage: str, other: str, folder: Path) -> None:
    """Load what a stage has saved in another strategy or stage, and the other way round."""
    one = Run(stage)
    one.train()
    one.accelerator.save_state(str(folder / "saved"))
    wanted = one.save(folder / "full", checkpoint_format="full")
    two = Run(other, seed=7)
    for name in ("saved", "full"):
        two.assert_loads(folder / name, wanted)
    two.train()
    wanted = two.save(folder / "back")
    Run(stage, seed=8).assert_loads(folder / "back", wanted)


@pytest.mark.parametrize(
    ("stage", "other"),
    [("zero1", "ddp"), ("zero3", "ddp"), ("zero2", "fsdp2"), ("zero0", "zero3"), ("zero1", "zero2")],
)
def test_stages_and_strategies_exchange_checkpoints(world, tmp_path, stage, other):
    world(2).run(exchange, stage, other, tmp_path)


def load_what_deepspeed_saves(stage: str, folder: Path) -> None:
    """Call DeepSpeed's save as Accelerate does, with its files of random states; read ours with it."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    run = Run(stage)
    run.train()
    wanted = run.save(folder / "saved")
    run.models[0].save_checkpoint(str(folder / "theirs"), "pytorch_model")
    if run.accelerator.is_main_process:
        for rank in range(2):
            name = f"random_states_{rank}.pkl"
            state = torch.load(folder / "saved" / name, weights_only=False)
            torch.save(
                {key: one for key, one in state.items() if key != "accel_format"}, folder / "theirs" / name
            )
        shutil.copy(folder / "saved" / "scheduler.bin", folder / "theirs")
        if stage != "zero0":
            weights = dict(get_fp32_state_dict_from_zero_checkpoint(str(folder / "saved")))
            model = wanted[0]["model"]
            if stage == "zero1":  # DeepSpeed leaves frozen weights out of what its script reads
                model = {name: value for name, value in model.items() if not name.startswith("frozen")}
            assert_equal(weights, model)
    run.accelerator.wait_for_everyone()
    Run(stage, seed=7).assert_loads(folder / "theirs", wanted, strict=False)


@pytest.mark.parametrize("stage", STAGES)
def test_deepspeeds_own_saves_are_loaded_and_its_script_reads_ours(world, tmp_path, stage):
    world(2).run(load_what_deepspeed_saves, stage, tmp_path)
