"""Loading some kinds of a checkpoint, and weights under other names."""

import warnings

import pytest
import torch
from torch import nn

from accel import Accelerator, FullyShardedDataParallelPlugin
from accel_state.errors import CheckpointError, ConfigError
from accel_state.runtime import reset_runtime

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
        ({"only": ["optimizers", "schedulers"]}, {"optimizers", "schedulers"}),
        ({"skip": ["random_states", "loaders"]}, {"models", "optimizers", "schedulers"}),
        ({"only": ["models", "random_states"], "skip": "random_states"}, {"models"}),
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


SCHEDULES = {
    "closed form": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 1 / (1 + step)
    ),
    "recursive": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
    "in parts": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 2),
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        ],
        [2],
    ),
}


def scheduled(kind, *, lr=1.0):
    accelerator = Accelerator(cpu=True)
    accelerator.free_memory()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return accelerator, *accelerator.prepare(model, optimizer, SCHEDULES[kind](optimizer))


def rates_of(accelerator, model, optimizer, scheduler):
    rates = []
    for _ in range(3):
        rates.append((float(optimizer.param_groups[0]["lr"]), float(scheduler.get_last_lr()[0])))
        accelerator.backward(model(torch.ones(1, 2)).sum())
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("arguments", [{"only": "schedulers"}, {"skip": "optimizers"}], ids=str)
def test_an_optimizer_gets_the_rate_of_a_schedule_that_is_loaded_without_it(tmp_path, kind, arguments):
    run = scheduled(kind)
    rates_of(*run)
    run[0].save_state(tmp_path / "a")
    expected = rates_of(*run)
    run = scheduled(kind)
    with pytest.warns(UserWarning, match="only one was loaded. The learning rate is that of the schedule"):
        run[0].load_state(tmp_path / "a", **arguments)
    assert rates_of(*run) == expected


@pytest.mark.parametrize("number", [float, torch.tensor])
def test_an_optimizer_that_is_loaded_without_its_schedule_keeps_the_rate_of_the_schedule(tmp_path, number):
    run = scheduled("recursive", lr=number(1.0))
    rates_of(*run)
    run[0].save_state(tmp_path / "a")
    run = scheduled("recursive", lr=number(1.0))
    with pytest.warns(UserWarning, match="that of the schedule, 1, and not 0.125 as in the optimizer"):
        run[0].load_state(tmp_path / "a", only="optimizers")
    assert rates_of(*run) == [(1.0, 1.0), (0.5, 0.5), (0.25, 0.25)]


def test_a_rate_that_was_set_by_hand_stays_if_both_are_loaded(tmp_path):
    run = scheduled("closed form")
    run[2].param_groups[0]["lr"] = 0.7
    run[0].save_state(tmp_path / "a")
    run = scheduled("closed form")
    run[0].load_state(tmp_path / "a")
    assert run[2].param_groups[0]["lr"] == 0.7


class Scaled(torch.optim.SGD):
    """An optimizer of which a newer release has another setting."""

    def __init__(self, params, lr, **added):
        super().__init__(params, lr)
        for name, value in added.items():
            self.defaults[name] = value
            self.param_groups[0].setdefault(name, value)


def save_and_load_with_a_new_setting(path, how, name):
    def prepared(**added):
        reset_runtime(keep_process_group=True)
        plugin = None
        if how != "no":
            plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type=how)
        accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
        model = nn.Linear(2, 2)
        return accelerator, *accelerator.prepare(model, Scaled(model.parameters(), 0.5, **added))

    accelerator, *_ = prepared()
    accelerator.save_state(path)
    accelerator, _, optimizer = prepared(**{name: 3.0})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accelerator.load_state(path)
    (group,) = optimizer.param_groups
    told = [str(one.message) for one in caught if "older release" in str(one.message)]
    return group[name], group["lr"], told


@pytest.mark.parametrize(
    ("how", "name"),
    [("no", "scale"), ("no", "eps"), ("FULL_STATE_DICT", "scale"), ("SHARDED_STATE_DICT", "eps")],
)
def test_a_setting_that_the_saved_optimizer_had_not_keeps_its_value_with_one_warning(
    world, tmp_path, how, name
):
    first, second = world(2).run(save_and_load_with_a_new_setting, tmp_path / "a", how, name)
    assert first[:2] == second[:2] == (3.0, 0.5)
    (message,) = first[2]
    assert f"`Scaled` lacks `{name}`" in message
    assert second[2] == []


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
