"""Whatever is around a model, or where its weights are: they are saved under their own names, and come back."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from accel import Accelerator
from accel_backends import compile_regions
from accel_bigmodel import cpu_offload, disk_offload, dispatch_model
from accel_state.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("fresh_state")


class Net(nn.Module):
    def __init__(self, *, seed=0, tied=False):
        super().__init__()
        torch.manual_seed(seed)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 4, bias=False)
        self.requires_grad_(False)
        self.norm.running_mean.normal_()
        if tied:
            self.head.weight = self.blocks[0].weight

    def forward(self, inputs):
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(self.norm(inputs))


KINDS = {
    "plain": lambda model, folder: model,
    "compiled": lambda model, folder: torch.compile(model, backend="eager"),
    "compiled in regions": lambda model, folder: compile_regions(model, backend="eager"),
    "offloaded to memory": lambda model, folder: cpu_offload(model),
    "offloaded to disk": lambda model, folder: disk_offload(model, folder),
    "in parts": lambda model, folder: dispatch_model(
        model, {"blocks.0": "disk", "blocks.1": "disk", "blocks.2": "cpu", "norm": "cpu", "head": "disk"},
        offload_dir=folder,
    ),
}  # fmt: skip
any_kind = pytest.mark.parametrize("kind", KINDS)
whether_tied = pytest.mark.parametrize("tied", [False, True])
whether_safe = pytest.mark.parametrize("safe", [True, False])


def prepared(kind, folder, *, seed, tied):
    accelerator = Accelerator(cpu=True)
    accelerator.free_memory()
    return accelerator, accelerator.prepare(KINDS[kind](Net(seed=seed, tied=tied), folder)).eval()


def answers(model):
    torch.manual_seed(7)
    return model(torch.randn(5, 4))


@any_kind
@whether_tied
@whether_safe
def test_a_checkpoint_of_any_model_loads_into_one_of_its_kind(tmp_path, kind, tied, safe):
    accelerator, model = prepared(kind, tmp_path / "parts", seed=1, tied=tied)
    accelerator.save_state(tmp_path / "a", safe_serialization=safe)
    accelerator, other = prepared(kind, tmp_path / "other parts", seed=2, tied=tied)
    assert not torch.equal(answers(other), answers(model))
    accelerator.load_state(tmp_path / "a", verify=True)
    assert torch.equal(answers(other), answers(model))


@pytest.mark.filterwarnings("error:.*is a no-op")
def test_a_hook_that_fails_on_one_rank_does_not_block_the_others(tmp_path, monkeypatch):
    """Their states may be gathered, as those of sharded optimizers are."""
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(2, 2)
    accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    gathered = []
    real = accelerator.strategy.optimizer_tensors
    monkeypatch.setattr(
        accelerator.strategy, "optimizer_tensors", lambda *given: gathered.append(1) or real(*given)
    )

    def hook(models, weights, output_dir):
        raise KeyError("no luck here")

    accelerator.register_save_state_pre_hook(hook)
    with pytest.raises(CheckpointError, match="no luck here"):
        accelerator.save_state(tmp_path / "a")
    assert gathered == [1]


def test_loading_into_a_model_that_is_elsewhere_warns_of_nothing(tmp_path):
    accelerator, _ = prepared("offloaded to memory", tmp_path, seed=1, tied=False)
    accelerator.save_state(tmp_path / "a")
    accelerator.load_state(tmp_path / "a")


def test_a_model_on_the_meta_device_is_rejected(tmp_path):
    accelerator, _ = prepared("plain", tmp_path, seed=1, tied=False)
    accelerator.save_state(tmp_path / "a")
    accelerator, model = prepared("plain", tmp_path, seed=2, tied=False)
    model.head.to("meta")
    with pytest.raises(CheckpointError, match=r"`head.weight` of model 0 \(Net\) is on the meta device"):
        accelerator.load_state(tmp_path / "a")


@any_kind
@whether_tied
def test_a_checkpoint_of_any_model_loads_into_a_plain_one(tmp_path, kind, tied):
    accelerator, model = prepared(kind, tmp_path / "parts", seed=1, tied=tied)
    accelerator.save_state(tmp_path / "a", blocking=False).wait()
    accelerator, other = prepared("plain", tmp_path, seed=2, tied=tied)
    accelerator.load_state(tmp_path / "a")
    assert torch.equal(answers(other), answers(model))


@any_kind
@whether_tied
@whether_safe
def test_the_weights_of_any_model_load_into_plain_pytorch(tmp_path, kind, tied, safe):
    accelerator, model = prepared(kind, tmp_path / "parts", seed=1, tied=tied)
    accelerator.save_model(model, tmp_path / "a", safe_serialization=safe)
    plain = Net(seed=2, tied=tied).eval()
    if safe:
        weights = load_file(tmp_path / "a" / "model.safetensors")
    else:
        weights = torch.load(tmp_path / "a" / "pytorch_model.bin", weights_only=True)
    outcome = plain.load_state_dict(weights, strict=False)
    assert not outcome.unexpected_keys
    assert set(outcome.missing_keys) <= ({"head.weight"} if tied and safe else set())
    assert torch.equal(answers(plain), answers(model))


def save_and_load(folder, *, kind, tied):
    accelerator, model = prepared(kind, folder, seed=1, tied=tied)
    accelerator.save_state(f"{folder}/a")
    accelerator, other = prepared(kind, folder, seed=2, tied=tied)
    accelerator.load_state(f"{folder}/a", verify=True)
    return torch.equal(answers(other), answers(model))


@pytest.mark.parametrize("kind", ["compiled", "compiled in regions"])
def test_on_two_processes_too(world, tmp_path, kind):
    assert world(2).run(save_and_load, str(tmp_path), kind=kind, tied=True) == [True, True]


def save_and_load_with_hooks(folder, settings):
    """Save two models, the second by hand; return True if hooks got the models themselves and both were loaded."""
    accelerator = Accelerator(cpu=True, **settings)
    models = [Net(seed=1), Net(seed=2)]
    for model in models:
        model.requires_grad_(True)
        accelerator.prepare(model)
    got = []

    def save(models, weights, folder):
        got.extend(models)
        torch.save(models[1].state_dict(), f"{folder}/by_hand.pt")
        del weights[1]

    def load(models, folder):
        got.extend(models)
        models.pop().load_state_dict(torch.load(f"{folder}/by_hand.pt"))

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
    accelerator.save_state(folder)
    wanted = [model.head.weight.clone() for model in models]
    for model in models:
        nn.init.zeros_(model.head.weight)
    accelerator.load_state(folder)
    are_loaded = [torch.equal(model.head.weight, one) for model, one in zip(models, wanted, strict=True)]
    return [one is other for one, other in zip(got, [*models, *models], strict=True)] + are_loaded


@pytest.mark.parametrize("settings", [{}, {"dynamo_backend": "eager"}], ids=["wrapped", "and compiled"])
def test_hooks_get_models_without_wrappers(world, tmp_path, settings):
    assert world(2).run(save_and_load_with_hooks, tmp_path / "a", settings) == [[True] * 6] * 2
