"""8-bit training with torchao, on one process and on ranks that meet over gloo."""

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from accel import Accelerator, FullyShardedDataParallelPlugin
from accel.utils import (
    AORecipeKwargs,
    convert_model_to_fp8_ao,
    filter_first_and_last_linear_layers,
    has_ao_layers,
    set_seed,
)
from accel_state.enums import FP8BackendType
from accel_state.environment import patch_environment
from accel_state.errors import ConfigError
from accel_state.runtime import reset_runtime

pytest.importorskip("torchao", reason="needs torchao")

pytestmark = [pytest.mark.engine("long"), pytest.mark.usefixtures("fresh_state")]
NUM_STEPS = 60
DISTANCE, DISTANCE_AT_END = 0.03, 0.03
"""How far the mean loss of all 60 steps and of the last 20 may lie from those of bf16."""
RECIPES = ["tensorwise", "rowwise", "rowwise_with_gw_hp"]


class Digits(nn.Module):
    """A network from ``(batch, 64)`` to ``(batch, 10)`` whose inner layers can compute in fp8."""

    def __init__(self, width=128):
        super().__init__()
        self.first = nn.Linear(64, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.last = nn.Linear(width, 10)

    def forward(self, pixels):
        hidden = self.first(pixels)
        for block in self.blocks:
            hidden = block(hidden)
        return self.last(hidden)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, hidden):
        return hidden + self.down(F.gelu(self.up(self.norm(hidden))))


def digits_model():
    torch.manual_seed(0)
    return Digits()


def digits_rows():
    """Return the scans of the digits example, as rows of 64 pixels, with their labels."""
    from sklearn.datasets import load_digits

    scans = load_digits()
    return torch.tensor(scans.data, dtype=torch.float32) / 16, torch.tensor(scans.target)


def train(
    precision, *, recipe=None, plugin=None, num_steps=NUM_STEPS, num_optimizers=1, accumulate=1, **arguments
):
    """Train as a user would; return the losses, the full state and the names of the converted layers."""
    set_seed(0)
    accelerator = Accelerator(
        cpu=True,
        mixed_precision=precision,
        kwargs_handlers=None if recipe is None else [AORecipeKwargs(**recipe)],
        fsdp_plugin=None if plugin is None else FullyShardedDataParallelPlugin(**plugin),
        gradient_accumulation_steps=accumulate,
        **arguments,
    )
    model = digits_model()
    parameters = list(model.parameters())
    optimizers = [
        torch.optim.AdamW(parameters[number::num_optimizers], lr=1e-3) for number in range(num_optimizers)
    ]
    # 1,797 rows are no multiple of a batch: the last one has another size, and no multiple of 16.
    loader = DataLoader(
        TensorDataset(*digits_rows()), batch_size=32 // accelerator.num_processes, shuffle=True
    )
    model, loader, *optimizers = accelerator.prepare(model, loader, *optimizers)
    losses = []
    while len(losses) < num_steps:
        for pixels, labels in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(pixels), labels)
                accelerator.backward(loss)
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
            if len(losses) == num_steps:
                break
    converted = [name for name, module in model.named_modules() if type(module).__name__ == "Float8Linear"]
    return losses, accelerator.get_state_dict(model), converted


def mean(losses):
    return sum(losses) / len(losses)


@cache
def alone(precision, num_steps=10):
    """Return the losses on one process."""
    losses = train(precision, num_steps=num_steps)[0]
    reset_runtime()
    return losses


@pytest.mark.parametrize(
    ("recipe", "emulate"), [*((recipe, False) for recipe in RECIPES), ("tensorwise", True)]
)
def test_60_steps_on_digits_come_near_bf16(recipe, emulate):
    from torchao.float8 import Float8LinearConfig

    in_bf16 = alone("bf16", NUM_STEPS)
    config = replace(Float8LinearConfig.from_recipe_name(recipe), emulate=emulate, pad_inner_dim=True)
    losses, state, converted = train("fp8", recipe={"config": config})
    assert len(converted) == 6
    assert losses[0] > 2
    assert losses[:5] != in_bf16[:5]
    assert abs(mean(losses) - mean(in_bf16)) < DISTANCE
    assert abs(mean(losses[-20:]) - mean(in_bf16[-20:])) < DISTANCE_AT_END
    assert {value.dtype for value in state.values()} == {torch.float32}


def test_two_ranks_train_as_one_process_does(world):
    (losses, _, converted), _ = world(2).run(train, "fp8", num_steps=10)
    assert len(converted) == 6
    # One scale for each half of a batch, and so another rounding.
    assert losses == pytest.approx(alone("fp8"), abs=0.1)


SHARDED = {
    "fsdp2": {"fsdp_version": 2},
    "fsdp2, blocks": {
        "fsdp_version": 2,
        "transformer_cls_names_to_wrap": "Block",
        "auto_wrap_policy": "transformer_based_wrap",
    },
}


@pytest.mark.parametrize("gathers", [True, False])
@pytest.mark.parametrize("plugin", SHARDED)
def test_sharded_ranks_train_as_one_process_does(world, plugin, gathers):
    recipe = {"enable_fsdp_float8_all_gather": gathers}
    (losses, state, _), _ = world(2).run(train, "fp8", plugin=SHARDED[plugin], recipe=recipe, num_steps=10)
    assert losses == pytest.approx(alone("fp8"), abs=0.1)
    assert {type(value) for value in state.values()} == {torch.Tensor}
    digits_model().load_state_dict(state)


def gathered_kinds(gathers):
    _, model, _ = sharded(gathers)
    seen = {}
    for name, module in model.named_modules():
        if name.endswith(("up", "first")):
            module.register_forward_pre_hook(
                lambda layer, args, name=name: seen.update({name: type(layer.weight).__name__})
            )
    model(torch.zeros(4, 64))
    stored = type(model.blocks[0].up.weight._local_tensor).__name__
    return seen["first"], seen["blocks.0.up"], stored


def sharded(gathers=True, *, num_optimizers=1, **plugin):
    """Return an accelerator, a prepared model whose blocks are units, and its optimizers."""
    set_seed(0)
    accelerator = Accelerator(
        cpu=True,
        mixed_precision="fp8",
        fsdp_plugin=FullyShardedDataParallelPlugin(**{**SHARDED["fsdp2, blocks"], **plugin}),
        kwargs_handlers=[AORecipeKwargs(enable_fsdp_float8_all_gather=gathers)],
    )
    model = digits_model()
    parameters = list(model.parameters())
    optimizers = [
        torch.optim.AdamW(parameters[number::num_optimizers], lr=1e-2) for number in range(num_optimizers)
    ]
    model, *optimizers = accelerator.prepare(model, *optimizers)
    return accelerator, model, optimizers


def step(accelerator, model, optimizers):
    accelerator.backward(model(torch.linspace(-1, 1, 8 * 64).reshape(8, 64)).square().mean())
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def test_weights_are_gathered_in_fp8_on_request(world):
    kinds = world(2).run(gathered_kinds, True)
    assert kinds == [("Parameter", "Float8TrainingTensor", "WeightWithDynamicFloat8CastTensor")] * 2
    kinds = world(2).run(gathered_kinds, False)
    assert kinds == [("Parameter", "Parameter", "Tensor")] * 2


def scales(num_optimizers):
    accelerator, model, optimizers = sharded(num_optimizers=num_optimizers)
    found = []
    for _ in range(2):
        step(accelerator, model, optimizers)
        for layer in (block.up for block in model.blocks):
            whole = layer.weight.full_tensor()
            kept = layer.weight._local_tensor._precomputed_scale
            found.append((kept.item(), (448 / whole.abs().max().double()).float().item()))
    return found


@pytest.mark.parametrize("num_optimizers", [1, 3])
def test_each_optimizer_computes_the_scales_of_its_weights(world, num_optimizers):
    first, second = world(2).run(scales, num_optimizers)
    assert first == second
    for kept, expected in first:
        assert kept == pytest.approx(expected, rel=1e-6)


def resume(folder, state_dict_type):
    accelerator, model, optimizers = sharded(state_dict_type=state_dict_type)
    step(accelerator, model, optimizers)
    accelerator.save_state(folder / "a")
    accelerator.save_model(model, folder / "weights")
    step(accelerator, model, optimizers)
    step(accelerator, model, optimizers)
    wanted = accelerator.get_state_dict(model)
    accelerator.load_state(folder / "a")
    is_forgotten = model.blocks[0].up.weight._local_tensor._precomputed_scale is None
    step(accelerator, model, optimizers)
    step(accelerator, model, optimizers)
    return is_forgotten, wanted, accelerator.get_state_dict(model)


@pytest.mark.parametrize("kind", ["FULL_STATE_DICT", "SHARDED_STATE_DICT"])
def test_a_sharded_run_continues_bit_for_bit_from_its_checkpoint(world, tmp_path, kind):
    from safetensors.torch import load_file

    (is_forgotten, wanted, found), _ = world(2).run(resume, tmp_path, kind)
    assert is_forgotten
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)
    plain = digits_model()
    plain.load_state_dict(load_file(tmp_path / "weights" / "model.safetensors"))
    accelerator = Accelerator(cpu=True)
    plain, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2))
    accelerator.load_state(tmp_path / "a")
    assert not has_ao_layers(plain)
    assert optimizer.state_dict()["state"][0]["step"] == 1


def test_a_checkpoint_of_a_plain_model_loads_into_one_in_fp8(tmp_path):
    accelerator = Accelerator(cpu=True)
    plain = accelerator.prepare(digits_model())
    with torch.no_grad():
        plain.blocks[0].up.weight.fill_(0.25)
    accelerator.save_state(tmp_path / "a")
    from accel_state import AcceleratorState

    AcceleratorState._reset_state()
    accelerator = Accelerator(cpu=True, mixed_precision="fp8", fp8_backend="ao")
    model = accelerator.prepare(digits_model())
    assert has_ao_layers(model)
    accelerator.load_state(tmp_path / "a")
    assert torch.equal(model.blocks[0].up.weight, torch.full((256, 128), 0.25))


@pytest.mark.parametrize("plugin", [None, "fsdp2, blocks"])
def test_compiled_models_train(world, plugin):
    arguments = {"num_steps": 3, "plugin": plugin and SHARDED[plugin], "dynamo_backend": "aot_eager"}
    ((losses, _, _),) = world(1).run(train, "fp8", **arguments)
    assert losses == pytest.approx(alone("fp8")[:3], abs=0.02)


def test_gradients_are_accumulated(world):
    (losses, _, _), _ = world(2).run(train, "fp8", plugin=SHARDED["fsdp2"], num_steps=20, accumulate=2)
    assert losses[-1] == pytest.approx(alone("fp8")[-1], abs=0.5)


def test_the_backend_is_named_by_argument_handler_or_variable():
    from accel_state import AcceleratorState

    for arguments, variables in [
        ({"mixed_precision": "fp8", "fp8_backend": "AO"}, {}),
        ({"mixed_precision": "fp8", "kwargs_handlers": [AORecipeKwargs()]}, {}),
        ({}, {"ACCELERATE_MIXED_PRECISION": "fp8", "ACCELERATE_FP8_BACKEND": "AO"}),
        ({"mixed_precision": "fp8"}, {}),
    ]:
        with patch_environment(**variables):
            accelerator = Accelerator(cpu=True, **arguments)
        assert (accelerator.fp8_backend, accelerator.mixed_precision) == (FP8BackendType.AO, "fp8")
        assert accelerator.native_amp
        AcceleratorState._reset_state()


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("te", "`fp8_backend` is `TE`, but `kwargs_handlers` has a recipe of `AO`"),
        ("msamp", "MS-AMP needs torch 2.1, on which accel does not run. Use torchao"),
    ],
)
def test_a_backend_that_contradicts_the_recipe_or_does_not_run_is_refused(backend, message):
    with pytest.raises(ConfigError, match=message):
        Accelerator(cpu=True, mixed_precision="fp8", fp8_backend=backend, kwargs_handlers=[AORecipeKwargs()])


def test_what_is_converted_is_logged_and_nothing_converted_is_an_error(caplog):
    accelerator = Accelerator(cpu=True, mixed_precision="fp8", fp8_backend="ao")
    with caplog.at_level("INFO"):
        accelerator.prepare(digits_model())
    assert "fp8 (torchao): 6 of 8 linear layers of the Digits compute in 8 bits, with 95% of" in caplog.text
    assert "`first` (the first linear layer); `last` (the last linear layer)" in caplog.text
    with pytest.raises(
        ConfigError, match=r"converts none of the 2 linear layers of the Sequential: `0` .the first"
    ):
        accelerator.prepare(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)))
    with pytest.raises(ConfigError, match="the Conv2d has no linear layer"):
        accelerator.prepare(nn.Conv2d(1, 1, 1))


def test_every_layer_is_looked_at():
    model = nn.Sequential(
        nn.Linear(16, 32), nn.Linear(32, 20), nn.Linear(20, 32), nn.Linear(32, 32), nn.Linear(32, 16)
    )
    model.append(nn.MultiheadAttention(16, 2))
    model.append(model[3])
    model.append(nn.Linear(32, 32))
    model.append(nn.Linear(32, 32))
    found = convert_model_to_fp8_ao(model)
    assert found.converted == ("4", "7")
    assert found.kept == {
        "0": "the first linear layer",
        "1": "32 → 20 features are not multiples of 16",
        "2": "20 → 32 features are not multiples of 16",
        "3": "it stands at several places of the model",
        "5.out_proj": "a `NonDynamicallyQuantizableLinear` has code of its own",
        "8": "the last linear layer",
    }


def test_a_filter_chooses_layers_by_name():
    model = digits_model()
    found = convert_model_to_fp8_ao(model, module_filter_func=lambda layer, name: name.endswith("up"))
    assert found.converted == ("blocks.0.up", "blocks.1.up", "blocks.2.up")
    assert found.kept["last"] == "`module_filter_func` says no"


def test_the_documented_filter_is_the_default_one():
    model, same = digits_model(), digits_model()
    chosen = convert_model_to_fp8_ao(model, module_filter_func=filter_first_and_last_linear_layers)
    assert chosen == convert_model_to_fp8_ao(same)
    plain = digits_model()
    assert [
        name for name, _ in plain.named_modules() if filter_first_and_last_linear_layers(plain, name)
    ] == list(chosen.converted)


def test_layers_convert_once_and_optimizers_made_before_keep_their_parameters():
    accelerator = Accelerator(cpu=True, mixed_precision="fp8", fp8_backend="ao")
    model = digits_model()
    weight = model.blocks[0].up.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = accelerator.prepare(model, optimizer)
    assert model.blocks[0].up.weight is weight
    before = weight.detach().clone()
    step(accelerator, model, [optimizer])
    assert not torch.equal(before, weight)
    layer = model.blocks[0].up
    assert accelerator.prepare_model(copy.deepcopy(model), evaluation_mode=True).blocks[0].up is not layer


def refused(**arguments):
    Accelerator(cpu=True, mixed_precision="fp8", fp8_backend="ao", **arguments)


def test_strategies_that_cannot_work_with_these_layers_refuse_them(world):
    from accel import ParallelismConfig

    for layout, message in [
        ({"pp_size": 2}, "exchanges layers of the model, which the strategy `pipeline` cannot"),
        ({"tp_size": 2}, "`tp_size` 2 cuts layers, which `mixed_precision=fp8` exchanges"),
    ]:
        with pytest.raises(Exception, match=message):
            world(2).run(refused, parallelism_config=ParallelismConfig(**layout))


def test_recipes_that_contradict_themselves_are_refused():
    with pytest.raises(ConfigError, match=r"Unknown recipe of torchao `rowise`.*Did you mean `rowwise`"):
        Accelerator(cpu=True, mixed_precision="fp8", kwargs_handlers=[AORecipeKwargs(config="rowise")])
    handler = AORecipeKwargs(config="rowwise", enable_fsdp_float8_all_gather=True)
    with pytest.raises(ConfigError, match="needs weights with one scale each"):
        Accelerator(cpu=True, mixed_precision="fp8", kwargs_handlers=[handler])


def prepare_sharded():
    from torch.distributed.fsdp import fully_shard

    accelerator = Accelerator(
        cpu=True, mixed_precision="fp8", fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2)
    )
    accelerator.prepare(fully_shard(digits_model()))


def test_a_model_that_is_sharded_already_is_refused_rather_than_left_in_bf16(world):
    with pytest.raises(Exception, match="is sharded already and has no layers of torchao"):
        world(2).run(prepare_sharded)


def train_on_tokens(layout):
    """Train with CP or SP ranks, and return the losses of two steps."""
    from torchao.float8 import Float8LinearConfig

    from accel import ParallelismConfig
    from accel_state import TorchContextParallelConfig
    from tools.harness.models import make_model

    accelerator = Accelerator(
        cpu=True,
        mixed_precision="fp8",
        kwargs_handlers=[AORecipeKwargs(config=Float8LinearConfig(emulate=True))],  # its sizes are odd
        parallelism_config=ParallelismConfig(
            **layout,
            sp_backend="torch",
            cp_handler=TorchContextParallelConfig(cuts_batches=True) if "cp_size" in layout else None,
        )
        if layout
        else None,
    )
    model = make_model("tokens")
    ids = torch.randint(1, 19, (4, 8), generator=torch.Generator().manual_seed(1))
    rows = [{"input_ids": one, "labels": one} for one in ids]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(rows, batch_size=2))
    assert has_ao_layers(model)
    losses = []
    for batch in loader:
        labels = batch.pop("shift_labels", None)
        if labels is None:
            labels = F.pad(batch["labels"], (0, 1), value=-100)[:, 1:]
        batch.pop("labels", None)
        summed = F.cross_entropy(model(**batch).flatten(0, 1), labels.flatten(), reduction="sum")
        num = (labels != -100).sum()
        accelerator.backward(summed / num, num_items=num)
        optimizer.step()
        optimizer.zero_grad()
        losses.append((accelerator.reduce(summed.detach()) / accelerator.reduce(num)).item())
    return losses


@pytest.mark.parametrize("layout", [{"cp_size": 2}, {"sp_size": 2}])
def test_sequence_parallel_ranks_train_as_one_process_does(world, layout):
    alone = world(1).run(train_on_tokens, {})[0]
    first, second = world(2).run(train_on_tokens, layout)
    assert first == second
    assert first == pytest.approx(alone, abs=0.05)
