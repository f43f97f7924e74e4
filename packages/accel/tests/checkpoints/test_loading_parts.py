"""Loading some kinds of a checkpoint, and weights under other names."""

import warnings

import pytest
import torch
from torch import nn

from accel import Accelerator
from accel_state.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.usefixtures("fresh_state")


def train(accelerator, model, optimizer, scheduler):
    torch.manual_seed(3)
    for _ in range(2):
        accelerator.backward(model(torch.rand(4, 2)).square().sum())
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


def build(*, seed=0, name="weight_of"):
    torch.manual_seed(seed)
    accelerator = Accelerator(cpu=True)
    accelerator.free_memory()
    model = nn.ModuleDict({name: nn.Linear(2, 2), "head": nn.Linear(2, 1)})
    model.forward = lambda x: model["head"](model[name](x))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return accelerator, *accelerator.prepare(model, optimizer, scheduler)


@pytest.fixture
def folder(tmp_path):
    accelerator, model, optimizer, scheduler = build()
    train(accelerator, model, optimizer, scheduler)
    torch.manual_seed(11)
    accelerator.save_state(tmp_path / "a")
    return tmp_path / "a"


def state_of(model, optimizer, scheduler):
    return {
        "models": model["head"].weight.detach().clone(),
        "optimizers": torch.tensor(len(optimizer.state_dict()["state"])),
        "schedulers": torch.tensor(scheduler.state_dict()["last_epoch"]),
        "random_states": torch.get_rng_state(),
    }


@pytest.mark.parametrize(
    ("arguments", "loaded"),
    [
        ({}, {"models", "optimizers", "schedulers", "random_states"}),
        ({"only": ["models"]}, {"models"}),
        ({"only": "optimizers"}, {"optimizers"}),
        ({"skip": ["random_states", "loaders"]}, {"models", "optimizers", "schedulers"}),
        ({"only": ["models", "schedulers"], "skip": "models"}, {"schedulers"}),
    ],
)
def test_only_the_kinds_that_are_named_change(folder, arguments, loaded):
    accelerator, *objects = build(seed=1)
    before = state_of(*objects)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is said of what is left out on purpose
        accelerator.load_state(folder, **arguments)
    after = state_of(*objects)
    assert {kind for kind in before if not torch.equal(before[kind], after[kind])} == loaded


def test_an_unknown_kind_is_an_error_that_lists_the_known_ones(folder):
    accelerator, *_ = build()
    with pytest.raises(ConfigError, match=r"`skip` knows no kind `optimizer`. Known: models, optimizers, "):
        accelerator.load_state(folder, skip=["optimizer"])


@pytest.mark.parametrize("safe", [True, False])
def test_weights_are_found_under_the_names_that_they_begin_with(tmp_path, safe):
    accelerator, model, *_ = build(seed=5, name="backbone")
    accelerator.save_state(tmp_path / "a", safe_serialization=safe)
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    accelerator, model, *_ = build(seed=6, name="encoder")
    with pytest.raises(CheckpointError, match=r"it lacks `encoder.weight`"):
        accelerator.load_state(tmp_path / "a", only="models")
    accelerator.load_state(tmp_path / "a", only="models", key_map={"backbone.": "encoder."})
    for name, value in model.state_dict().items():
        assert torch.equal(value, saved[name.replace("encoder", "backbone")])


def test_the_longest_beginning_counts_and_the_empty_one_fits_all(tmp_path):
    accelerator = Accelerator(cpu=True)
    inner = accelerator.prepare(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    accelerator.save_state(tmp_path / "a")
    saved = [layer.weight.detach().clone() for layer in inner]
    accelerator.free_memory()
    outer = accelerator.prepare(
        nn.ModuleDict({"core": nn.ModuleDict({"0": nn.Linear(2, 2)}), "last": nn.Linear(2, 2)})
    )
    accelerator.load_state(tmp_path / "a", only="models", key_map={"": "core.", "1.": "last."})
    assert torch.equal(outer["core"]["0"].weight, saved[0])
    assert torch.equal(outer["last"].weight, saved[1])


def test_two_weights_of_one_name_are_refused(folder):
    accelerator, *_ = build()
    with pytest.raises(ConfigError, match="two weights of the checkpoint the same name `head.(weight|bias)`"):
        accelerator.load_state(folder, only="models", key_map={"weight_of.": "head."})


def sharded(folder):
    from torch.distributed.tensor import DTensor

    from accel_backends import FullyShardedDataParallelPlugin

    def build_sharded(seed, name):
        torch.manual_seed(seed)
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
        accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
        accelerator.free_memory()
        model = nn.Sequential()
        model.add_module(name, nn.Linear(3, 5))
        return accelerator, *accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))

    def average(optimizer, weight):
        return optimizer.state[weight]["exp_avg"].full_tensor()

    accelerator, model, optimizer = build_sharded(0, "backbone")
    accelerator.backward(model(torch.ones(2, 3)).square().sum())
    optimizer.step()
    accelerator.save_state(folder)
    saved = [model.backbone.weight.full_tensor(), average(optimizer, model.backbone.weight)]
    accelerator, model, optimizer = build_sharded(1, "encoder")
    accelerator.load_state(folder, key_map={"backbone.": "encoder."})
    assert isinstance(model.encoder.weight, DTensor)
    loaded = [model.encoder.weight.full_tensor(), average(optimizer, model.encoder.weight)]
    return saved[1].any() and all(map(torch.equal, loaded, saved))


def test_a_sharded_model_and_its_optimizer_are_read_under_other_names(world, tmp_path):
    assert world(3).run(sharded, str(tmp_path / "a")) == [True] * 3


def test_hooks_do_not_get_the_models_that_are_not_loaded(folder):
    accelerator, model, *_ = build(seed=1)
    got = []
    accelerator.register_load_state_pre_hook(lambda models, folder: got.append(list(models)))
    accelerator.load_state(folder, skip="models")
    accelerator.load_state(folder, only="models")
    assert got == [[], [model]]


def test_other_names_for_models_that_are_not_loaded_are_refused(folder):
    accelerator, *_ = build()
    with pytest.raises(ConfigError, match="`key_map` has no effect: no models are loaded"):
        accelerator.load_state(folder, only="optimizers", key_map={"a.": "b."})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"only": []}, "`only` and `skip` leave nothing to load"),
        ({"only": "models", "skip": "models"}, "`only` and `skip` leave nothing to load"),
        ({"key_map": lambda name: name}, "`key_map` is a function. Pass a dict"),
    ],
)
def test_arguments_that_select_nothing_or_cannot_be_read_are_refused(folder, arguments, message):
    accelerator, *_ = build()
    with pytest.raises(ConfigError, match=message):
        accelerator.load_state(folder, **arguments)


def test_what_is_loaded_in_inference_mode_can_be_trained(folder):
    objects = build(seed=1)
    with torch.inference_mode():
        objects[0].load_state(folder)
    train(*objects)
