"""Transformer Engine through a stand-in with its signatures; `tools/gpu/training.py` runs the real one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from accel_backends import (
    TERecipeKwargs,
    apply_fp8_autowrap,
    collect,
    contextual_fp8_autocast,
    convert_model,
    has_transformer_engine_layers,
    select_precision,
)
from accel_backends.activation_checkpointing import checkpoint_units
from accel_backends.precisions.fp8.te_recipes import make_recipe
from accel_state.devices import device_backend
from accel_state.enums import FP8BackendType
from accel_state.errors import ConfigError, NotAvailableError

ROWS = torch.linspace(-1, 1, 2 * 32).reshape(2, 32)


def network():
    """Return layers of which the second is of an odd size, with more behind it."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(32, 48),
        nn.Linear(48, 20),
        nn.Linear(20, 48),
        nn.LayerNorm(48),
        nn.Sequential(nn.Linear(48, 32, bias=False), nn.LayerNorm(32, eps=0.5)),
    )


def fp8(gpu, **settings):
    return select_precision("fp8", device_backend=gpu, handlers=collect([TERecipeKwargs(**settings)]))


def test_every_layer_is_looked_at_beyond_the_first_odd_shape(te):
    model = network()
    plain = copy.deepcopy(model)
    found = convert_model(model)
    assert found.converted == ("0", "4.0")
    assert found.kept == {
        "1": "48 → 20 features are not multiples of 16",
        "2": "20 → 48 features are not multiples of 16",
    }
    kinds = [type(module).__module__.partition(".")[0] for module in model.modules()]
    assert isinstance(model[0], te.content["Linear"])
    assert isinstance(model[4][1], te.content["LayerNorm"])
    assert kinds
    torch.testing.assert_close(model(ROWS), plain(ROWS))


def test_parameters_stay_the_same_objects_and_the_way_back_is_open(te):
    model = network()
    parameters = dict(model.named_parameters())
    convert_model(model)
    assert has_transformer_engine_layers(model)
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    convert_model(model, to_transformer_engine=False)
    assert not has_transformer_engine_layers(model)
    assert repr(model) == repr(network())
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())


@pytest.mark.parametrize("left_out", ["_convert_linear", "_convert_ln"])
def test_one_kind_of_layers_can_be_left_out(te, left_out):
    model = network()
    convert_model(model, **{left_out: False})
    kinds = {type(module) for module in model.modules()} & {te.content["Linear"], te.content["LayerNorm"]}
    assert kinds == {te.content["LayerNorm" if left_out == "_convert_linear" else "Linear"]}


def test_a_state_dict_is_that_of_the_plain_model(te):
    model = network()
    convert_model(model)
    state = model.state_dict()
    assert list(state) == list(network().state_dict())
    network().load_state_dict(state)
    model.load_state_dict(network().state_dict())


def test_nothing_of_the_library_is_there_before_its_import():
    assert not has_transformer_engine_layers(network())


def test_training_computes_in_fp8_and_evaluation_on_request(te, gpu):
    for in_evaluation in (False, True):
        te.entered.clear()
        precision = fp8(gpu, use_autocast_during_eval=in_evaluation)
        model = precision.convert(network())
        model.train()(ROWS)
        model.eval()(ROWS)
        assert [enabled for enabled, _ in te.entered] == [True, in_evaluation]
        assert precision.convert(model) is model
        model(ROWS)
        assert len(te.entered) == 3  # wrapped once


def test_a_model_with_layers_of_the_library_keeps_them(te, gpu):
    model = nn.Sequential(te.content["Linear"](32, 16, params_dtype=torch.float32, device="cpu"))
    layer = model[0]
    fp8(gpu).convert(model)
    assert model[0] is layer
    model(ROWS)
    assert te.entered


def test_nothing_converted_is_an_error(te, gpu):
    with pytest.raises(
        ConfigError, match="converts none of the 1 linear layers.*10 features are not multiples"
    ):
        fp8(gpu).convert(nn.Sequential(nn.Linear(10, 10)))
    with pytest.raises(ConfigError, match="48 → 32 features are not multiples of 32"):
        fp8(gpu, scaling="mxfp8").convert(nn.Sequential(nn.Linear(48, 32)))


@pytest.mark.parametrize(
    ("settings", "kind", "values"),
    [
        ({}, "DelayedScaling", {"amax_compute_algo": "most_recent", "amax_history_len": 1024}),
        ({"fp8_format": "e4m3", "margin": 2}, "DelayedScaling", {"fp8_format": "E4M3", "margin": 2}),
        ({"amax_history_len": 16, "amax_compute_algo": "max"}, "DelayedScaling", {"amax_history_len": 16}),
        ({"scaling": "current"}, "Float8CurrentScaling", {"fp8_format": "HYBRID"}),
        ({"scaling": "block"}, "Float8BlockScaling", {"fp8_format": "E4M3"}),
        ({"use_mxfp8_block_scaling": True}, "MXFP8BlockScaling", {"fp8_format": "E4M3"}),
        (
            {"scaling": "current", "override_linear_precision": (False, True, True)},
            "Float8CurrentScaling",
            {"backward_override": "high_precision"},
        ),
    ],
)
def test_recipes_have_what_the_settings_specify(te, settings, kind, values):
    recipe = make_recipe(TERecipeKwargs(**settings))
    assert type(recipe).__name__ == kind
    for name, value in values.items():
        found = getattr(recipe, name)
        assert getattr(found, "value", found) == value


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interval": 2}, "`interval=2` has no effect with `scaling='delayed'`"),
        ({"scaling": "block", "amax_history_len": 3}, "`amax_history_len=3` has no effect"),
        ({"fp8_format": "E5M2"}, "`fp8_format=E5M2` cannot train"),
        ({"override_linear_precision": (False, False, True)}, "has no effect with `scaling='delayed'`"),
    ],
)
def test_settings_without_effect_are_refused_at_construction(te, gpu, settings, message):
    with pytest.raises(ConfigError, match=message):
        fp8(gpu, **settings)


def test_what_the_gpu_cannot_compute_is_refused_with_the_reason(te, gpu):
    te.unavailable["is_mxfp8_available"] = "Device compute capability 10.0 or higher required."
    with pytest.raises(ConfigError, match="`scaling='mxfp8'` .* cannot be computed here: Device compute cap"):
        fp8(gpu, scaling="mxfp8")
    assert fp8(gpu).fp8_backend == FP8BackendType.TE


def test_other_devices_and_a_missing_library_are_refused_by_name(te, gpu, monkeypatch):
    with pytest.raises(ConfigError, match="computes on NVIDIA GPUs, not on this `cpu` device. Use torchao"):
        fp8(device_backend("cpu"))
    monkeypatch.delitem(__import__("sys").modules["transformer_engine.pytorch"].__dict__, "autocast")
    with pytest.raises(NotAvailableError, match="has no `autocast`, which came with version 2.9"):
        fp8(gpu)


def test_a_library_that_is_not_installed_is_an_error_and_no_other_precision(gpu):
    with pytest.raises(
        NotAvailableError, match="`fp8_backend=TE` cannot be had: `transformer-engine` is not inst"
    ):
        fp8(gpu)


def test_a_forward_can_be_wrapped_by_hand(te):
    model = network()
    recipe = make_recipe(TERecipeKwargs())
    forward = contextual_fp8_autocast(model.forward, recipe, use_during_eval=False)
    forward(model, ROWS)
    forward(model.eval(), ROWS)
    assert [enabled for enabled, _ in te.entered] == [True, False]
    assert te.entered[0][1] is recipe
    assert forward.__wrapped__ == model.forward
    assert apply_fp8_autowrap(model, TERecipeKwargs(use_autocast_during_eval=True)) is model
    model(ROWS)
    assert te.entered[-1][0]


def test_a_small_model_trains(te, gpu):
    torch.manual_seed(0)
    model = fp8(gpu).convert(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(40):
        loss = (model(ROWS) - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


@pytest.mark.parametrize("is_selective", [True, False])
def test_blocks_that_are_computed_again_in_backward_compute_in_fp8_again(te, gpu, is_selective):
    gradients = []
    for is_checkpointed in (False, True):
        model = fp8(gpu).convert(network())
        if is_checkpointed:
            checkpoint_units([model[0], model[4]], is_selective=is_selective)
        rows = ROWS.clone().requires_grad_()
        model(rows).square().sum().backward()
        assert te.depth == 0
        gradients.append([rows.grad, *(parameter.grad for parameter in model.parameters())])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)
