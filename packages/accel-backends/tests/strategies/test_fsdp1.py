"""Parts of parameters on two processes: clipping, states, and what is refused."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.distributed.tensor import DTensor

from accel_backends import Bundle, StrategyContext, Sync, select_precision, select_strategy
from accel_backends.plugins.dynamo import TorchDynamoPlugin
from accel_backends.plugins.fsdp import FullyShardedDataParallelPlugin
from accel_backends.strategies.fsdp1 import sharding_in
from accel_state import AcceleratorState
from accel_state.enums import DynamoBackend
from accel_state.errors import CheckpointError, ConfigError
from accel_state.mesh_layout import MeshLayout
from accel_state.runtime import current_runtime
from tools.harness.models import make_batches, make_model

ENGINES = {
    "ddp": None,
    "fsdp2": {"fsdp_version": 2},
    "flat": {"fsdp_version": 1, "use_orig_params": False},
    "original": {"fsdp_version": 1, "use_orig_params": True},
    "whole": {"fsdp_version": 1, "sharding_strategy": "NO_SHARD"},
}
FLAT = pytest.mark.parametrize("use_orig_params", [False, True])


def strategy_for(engine="flat", *, dynamo=None, **settings):
    fields = ENGINES[engine]
    plugin = None if fields is None else FullyShardedDataParallelPlugin(**fields, **settings)
    AcceleratorState(cpu=True, fsdp_plugin=plugin)  # arranges the ranks as the plugin specifies
    runtime = current_runtime()
    precision = select_precision("no", device_backend=runtime.device_backend)
    strategy = select_strategy(topology=runtime.topology, plugin=plugin)
    strategy.setup(StrategyContext(runtime, precision, plugin=plugin, dynamo=dynamo))
    return strategy


def prepare(strategy, model, optimizer):
    bundle = strategy.prepare(Bundle(models=[model], optimizers=[optimizer]))
    return bundle.models[0], bundle.optimizers[0]


def unwrapped(strategy, model, optimizer):
    return strategy.unwrap(model, keep_torch_compile=False), strategy.bare_optimizer(optimizer)


def adamw(model):
    decayed = [one for one in model.parameters() if one.dim() > 1]
    others = [one for one in model.parameters() if one.dim() <= 1]
    return torch.optim.AdamW(
        [{"params": decayed}, {"params": others, "lr": 0.02, "weight_decay": 0.0}], lr=0.01
    )


def plain_adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def train(strategy, model, optimizer, steps):
    rank = current_runtime().topology.rank
    rows = make_batches(2 * (max(steps) + 1))
    for step in steps:
        strategy.backward(model(rows[2 * step + rank]).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def states_of(strategy, model, optimizer):
    """Return the states of both with full tensors. All ranks call it."""
    model, optimizer = unwrapped(strategy, model, optimizer)
    weights, moments = strategy.model_state(model), strategy.local_optimizer_state(optimizer)
    return weights, torch.utils._pytree.tree_map_only(DTensor, DTensor.full_tensor, moments)


def go_on_from(engine, states, step, kind, make_optimizer):
    """Load states into fresh objects, return what is in them now, and what after another step."""
    strategy = strategy_for(engine)
    model = make_model(kind, seed=11)
    model, optimizer = prepare(strategy, model, make_optimizer(model))
    loaded = None
    if states is not None:
        inside = unwrapped(strategy, model, optimizer)
        strategy.load_model_state(inside[0], states[0])
        strategy.load_optimizer_state(inside[1], states[1])
        # Copied, since they may be the tensors that are trained.
        loaded = copy.deepcopy(states_of(strategy, model, optimizer))
    train(strategy, model, optimizer, [step])
    return loaded, states_of(strategy, model, optimizer)


def assert_equal_states(ours, theirs):
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("engines", "kind", "make_optimizer"),
    [
        (["flat", "ddp", "original", "fsdp2", "flat"], "tied", plain_adamw),
        (["original", "whole", "fsdp2", "original", "ddp"], "odd", plain_adamw),
        (["ddp", "original", "fsdp2"], "buffered", adamw),
    ],
)
def test_states_pass_from_one_strategy_to_the_next_without_a_difference(world, engines, kind, make_optimizer):
    states = None
    for step, engine in enumerate(engines):
        (loaded, after), *others = world(2).run(go_on_from, engine, states, step, kind, make_optimizer)
        if states is not None:
            assert_equal_states(loaded, states)
            assert list(loaded[0]) == list(states[0])
        if engine != "ddp":
            assert all(not model for _, (model, _) in others)
        states = after


def state_of_tied(use_orig_params):
    strategy = strategy_for("original" if use_orig_params else "flat")
    model = strategy.prepare_model(make_model("tied"))
    return strategy.model_state(strategy.unwrap(model))


@FLAT
def test_tied_weights_stay_one_tensor_in_a_state(world, use_orig_params):
    state, _ = world(2).run(state_of_tied, use_orig_params)
    assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr()


def misfits():
    strategy = strategy_for("flat")
    stepped = plain_adamw(plain := make_model("odd"))
    model, optimizer = prepare(strategy, plain, stepped)
    whole = strategy.model_state(plain) or make_model("odd").state_dict()
    found = []
    for change in ({"head.weight": torch.zeros(2, 33)}, {"stray": torch.zeros(1)}):
        with pytest.raises(RuntimeError) as caught:
            strategy.load_model_state(plain, {**whole, **change})
        found.append(str(caught.value))
    outcome = strategy.load_model_state(
        plain, {name: value for name, value in whole.items() if name != "blocks.1.up.bias"}, strict=False
    )
    train(strategy, model, optimizer, [0])
    state = plain_adamw(make_model("odd")).state_dict()
    with pytest.raises(CheckpointError) as caught:
        strategy.load_optimizer_state(stepped, plain_adamw(make_model("tied")).state_dict())
    found.append(str(caught.value))
    with pytest.raises(CheckpointError) as caught:
        state["state"] = {0: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(33, 7)}}
        strategy.load_optimizer_state(stepped, state)
    return [*found, str(caught.value)], list(outcome.missing_keys)


def test_a_state_of_another_model_is_refused_by_plain_names(world):
    for found, missing in world(2).run(misfits):
        assert "size mismatch for head.weight: (2, 33) in the state, (1, 33) in the model" in found[0]
        assert "unexpected stray" in found[1]
        assert "groups have 15 parameters, but those here have 24" in found[2]
        assert "nothing for `first.bias`" in found[3]
        assert missing == ["blocks.1.up.bias"]


def norms_of_parts(use_orig_params):
    strategy = strategy_for("original" if use_orig_params else "flat", ignored_modules="head")
    rank, rows = current_runtime().topology.rank, make_batches(2)
    first = strategy.prepare_model(make_model("odd"))
    second = strategy.prepare_model(make_model("tied"))
    strategy.backward(first(rows[rank]).square().mean() + second(rows[rank]).square().mean())
    norms = [
        strategy.clip_grad_norm(first.parameters(), math.inf),
        strategy.clip_grad_norm([*first.parameters(), *second.parameters()], math.inf),
        strategy.clip_grad_norm(first.module.blocks[1].parameters(), math.inf),
        strategy.clip_grad_norm(first.module.head.parameters(), math.inf, 3.0),
        strategy.clip_grad_norm(second.parameters(), math.inf, math.inf),
    ]
    strategy.clip_grad_norm(first.module.blocks[1].parameters(), 0.01)
    norms.append(strategy.clip_grad_norm(first.module.blocks[1].parameters(), math.inf))
    strategy.clip_grad_value(first.parameters(), 1e-3)
    norms.append(strategy.clip_grad_norm(first.parameters(), math.inf, math.inf))
    return norms


@FLAT
def test_any_parameters_of_any_models_have_the_norm_that_they_have_in_one_process(world, use_orig_params):
    first, second = make_model("odd"), make_model("tied")
    for rows in make_batches(2):
        (first(rows).square().mean() + second(rows).square().mean()).div(2).backward()

    def norm_of(parameters, norm_type=2.0):
        return torch.nn.utils.get_total_norm([one.grad for one in parameters], norm_type)

    expected = [
        norm_of(first.parameters()),
        norm_of([*first.parameters(), *second.parameters()]),
        norm_of(first.blocks[1].parameters()),
        norm_of(first.head.parameters(), 3.0),
        norm_of(second.parameters(), math.inf),
        torch.tensor(0.01),
        torch.tensor(1e-3),
    ]
    ours, others = world(2).run(norms_of_parts, use_orig_params)
    # Sums in another order: a few units in the last place.
    torch.testing.assert_close(torch.stack(ours), torch.stack(expected), rtol=1e-5, atol=0)
    assert torch.stack(ours).equal(torch.stack(others))
    assert all(type(norm) is torch.Tensor for norm in ours)


def norms_while_accumulating(use_orig_params):
    strategy = strategy_for("original" if use_orig_params else "flat")
    rank, rows = current_runtime().topology.rank, make_batches(2)
    model = strategy.prepare_model(make_model("odd"))
    with strategy.gradient_sync(model, sync=Sync.LATER):
        strategy.backward(model(rows[rank]).square().mean())
        inside = strategy.clip_grad_norm(model.parameters(), math.inf)
    after = strategy.clip_grad_norm(model.parameters(), math.inf)
    with pytest.raises(ConfigError, match="has not been reduced over all ranks yet"):
        strategy.clip_grad_norm(model.parameters(), 1.0)
    return inside, after


@FLAT
def test_gradients_that_are_not_reduced_yet_are_measured_but_not_clipped(world, use_orig_params):
    squares = []
    for rows in make_batches(2):
        model = make_model("odd")
        model(rows).square().mean().backward()
        squares.append(torch.nn.utils.get_total_norm([one.grad for one in model.parameters()]) ** 2)
    expected = torch.stack(squares).mean().sqrt()
    for norms in world(2).run(norms_while_accumulating, use_orig_params):
        for norm in norms:
            torch.testing.assert_close(norm, expected, rtol=1e-5, atol=0)


def refusals():
    found = []

    def expect(action, kind=ConfigError):
        with pytest.raises(kind) as caught:
            action()
        found.append(str(caught.value))

    strategy = strategy_for("flat")
    model = make_model("odd")
    old = model.first.weight
    stepping = adamw(model)
    model = strategy.prepare_model(model)
    expect(lambda: strategy.prepare_optimizer(stepping))
    expect(lambda: strategy.clip_grad_norm([old], 1.0))
    expect(lambda: strategy.clip_grad_value([old], 1.0))
    expect(lambda: strategy.clip_grad_norm(model.parameters(), 1.0, 0.0))
    expect(lambda: strategy.join_uneven_inputs([model]))
    expect(lambda: strategy.prepare_model(make_model("adapted")))
    mixed = make_model("odd")
    mixed.blocks[1].up.to(torch.float64)
    expect(lambda: strategy.prepare_model(mixed))
    expect(lambda: strategy_for("flat", dynamo=TorchDynamoPlugin(backend=DynamoBackend.AOT_EAGER)))
    return found


def test_what_would_train_nothing_or_wrongly_is_refused_with_the_way_out(world):
    for found in world(2).run(refusals):
        expected = [
            "Group 0 of the optimizer steps",
            "The parameter of shape (33, 7) is the `first.weight` from before the model was prepared",
            "The parameter of shape (33, 7) is the `first.weight` from before the model was prepared",
            "`norm_type` must be above 0",
            "`join_uneven_inputs` is not possible",
            "beside trained ones",
            "has parameters of several number formats",
            "`use_orig_params=False` cannot be compiled",
        ]
        for message, part in zip(found, expected, strict=True):
            assert part in message
        assert all("`use_orig_params=True`" in found[index] for index in (0, 1, 5, 7))


def settings_of_units(**fields):
    strategy = strategy_for("original", **fields)
    model = strategy.prepare_model(make_model("odd"))
    units = [module for module in model.modules() if isinstance(module, FullyShardedDataParallel)]
    return {
        (
            unit.backward_prefetch.name if unit.backward_prefetch else None,
            unit.forward_prefetch,
            unit.limit_all_gathers,
            unit.sharding_strategy.name,
            unit.mixed_precision.param_dtype,
        )
        for unit in units
    }, len(units)


def test_settings_of_the_plugin_reach_every_unit(world):
    for settings, number in world(2).run(
        settings_of_units,
        backward_prefetch="BACKWARD_POST",
        forward_prefetch=True,
        limit_all_gathers=False,
        sharding_strategy="SHARD_GRAD_OP",
        mixed_precision_policy="bf16",
    ):
        assert settings == {("BACKWARD_POST", True, False, "SHARD_GRAD_OP", torch.bfloat16)}
        assert number == 4  # three blocks and the root
    for _, number in world(2).run(
        settings_of_units, auto_wrap_policy="no_wrap", backward_prefetch="no_prefetch"
    ):
        assert number == 1


def train_and_hold(use_orig_params):
    strategy = strategy_for("original" if use_orig_params else "flat", state_dict_type="LOCAL_STATE_DICT")
    model, optimizer = prepare(strategy, plain := make_model("buffered"), plain_adamw(plain))
    train(strategy, model, optimizer, [0])
    inside = unwrapped(strategy, model, optimizer)
    own = strategy.parts_of_model(inside[0]), strategy.parts_of_optimizer(inside[1])
    saved = copy.deepcopy([dict(one) for one in own])
    train(strategy, model, optimizer, [1])
    expected = copy.deepcopy(states_of(strategy, model, optimizer))
    train(strategy, model, optimizer, [0])
    own[0].fill(saved[0])
    optimizer.load_state_dict(saved[1])
    train(strategy, model, optimizer, [1])
    assert_equal_states(states_of(strategy, model, optimizer), expected)
    return strategy.checkpoint_format, own[0].slices, sum(value.numel() for value in own[0].values())


@FLAT
def test_each_rank_holds_a_part_to_which_a_run_can_return(world, use_orig_params):
    plain = make_model("buffered")
    parameters = sum(value.numel() for value in plain.parameters())
    buffers = sum(value.numel() for value in plain.state_dict().values()) - parameters
    (form, cut, first), (_, other, second) = world(2).run(train_and_hold, use_orig_params)
    assert form == "per_rank"
    assert cut != other  # which part it is
    padding = 16 * len(cut)
    assert parameters + 2 * buffers <= first + second <= parameters + 2 * buffers + padding


def fill(module):
    module.to_empty(device="cpu", recurse=False)
    for value in module.parameters(recurse=False):
        nn.init.constant_(value, 0.25)


def initialised_by_function(kind):
    strategy = strategy_for("flat", param_init_fn=fill)
    with torch.device("meta"):
        model = make_model(kind)
    strategy.prepare_model(model)
    return strategy.model_state(model)


def test_models_on_the_meta_device_get_their_values_from_the_function(world):
    state, _ = world(2).run(initialised_by_function, "tied")
    assert all(torch.equal(value, torch.full_like(value, 0.25)) for value in state.values())
    assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr()


@pytest.mark.parametrize(
    ("layout", "asked", "found"),
    [
        ({"dp_shard": 4}, "FULL_SHARD", "FULL_SHARD"),
        ({"dp_shard": 4}, "HYBRID_SHARD", "FULL_SHARD"),
        ({"dp_shard": 4}, "_HYBRID_SHARD_ZERO2", "SHARD_GRAD_OP"),
        ({"dp_replicate": 2, "dp_shard": 2}, "HYBRID_SHARD", "HYBRID_SHARD"),
        ({"dp_replicate": 2, "dp_shard": 2}, "NO_SHARD", "NO_SHARD"),
        ({"dp_replicate": 4}, "HYBRID_SHARD", "NO_SHARD"),
        ({}, "FULL_SHARD", "NO_SHARD"),
    ],
)
def test_the_strategy_fits_the_arrangement_of_the_ranks(layout, asked, found):
    assert sharding_in(MeshLayout(**layout), ShardingStrategy[asked]) is ShardingStrategy[found]


def test_copies_of_the_model_need_a_hybrid_strategy():
    with pytest.raises(ConfigError, match=r"`dp_replicate_size`.* Set `sharding_strategy` to `HYBRID_SHARD`"):
        sharding_in(MeshLayout(dp_replicate=2, dp_shard=2), ShardingStrategy.FULL_SHARD)
