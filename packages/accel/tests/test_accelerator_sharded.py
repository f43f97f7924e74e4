"""Ranks that share one model must train it as one process would that accumulates their micro-batches."""

import pytest
import torch
from torch.distributed.tensor import DTensor, Shard

from accel import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig
from accel.planning.step import Step, planned_step
from accel.utils import set_seed
from accel_backends import resolve_plan
from accel_state import current_runtime
from accel_state.errors import ConfigError
from accel_state.mesh_layout import DATA_AXES, MeshLayout
from tools.harness.device import device_type, on_cpu
from tools.harness.models import Shared, make_batches, make_model

NUM_STEPS = 4
RTOL = 1e-6 if on_cpu() else 1e-5
ATOL = 0.0 if on_cpu() else 1e-5
"""Kernels of a GPU and NCCL add in another order."""
OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.02, initial_accumulator_value=0.7),
}
ENGINES = {
    "by layout": None,
    "fsdp2": {"fsdp_version": 2},
    "fsdp1": {"fsdp_version": 1},
    "fsdp1-grad": {"fsdp_version": 1, "sharding_strategy": "SHARD_GRAD_OP"},
    "fsdp1-whole": {"fsdp_version": 1, "sharding_strategy": "NO_SHARD"},
    "fsdp1-hybrid": {"fsdp_version": 1, "sharding_strategy": "HYBRID_SHARD"},
    "fsdp1-hybrid-grad": {"fsdp_version": 1, "sharding_strategy": "HYBRID_SHARD_ZERO2"},
}
"""How each engine is requested; a new one is a new row."""


def trainable(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def train_in_ranks(
    kind="odd",
    *,
    engine="fsdp2",
    plugin=None,
    layout=None,
    optimizer="adamw",
    accumulate=1,
    clip=None,
    precision="no",
    seed_of_rank=False,
    num_steps=NUM_STEPS,
):
    """Train in this rank as a user would; return losses, norms and the full state."""
    accelerator = Accelerator(
        cpu=on_cpu(),
        fsdp_plugin=ENGINES[engine] and FullyShardedDataParallelPlugin(**ENGINES[engine], **(plugin or {})),
        parallelism_config=ParallelismConfig(**layout) if layout else None,
        gradient_accumulation_steps=accumulate,
        mixed_precision=precision,
    )
    ranks = current_runtime().layout
    rank, size = ranks.index(accelerator.process_index, *DATA_AXES), ranks.num_data_ranks
    model = make_model(kind, seed=7 + (accelerator.process_index if seed_of_rank else 0))
    stepping = OPTIMIZERS[optimizer](trainable(model))
    model, stepping = accelerator.prepare(model, stepping)
    losses, norms = [], []
    rows = [row.to(accelerator.device) for row in make_batches(num_steps * accumulate * size)]
    for index in range(num_steps * accumulate):
        with accelerator.accumulate(model):
            loss = model(rows[index * size + rank]).square().mean()
            accelerator.backward(loss)
            if clip is not None and accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(model.parameters(), clip))
            stepping.step()
            stepping.zero_grad()
        losses.append(loss.detach())
    return losses, norms, accelerator.get_state_dict(model)


def train_alone(kind="odd", *, num_ranks, optimizer="adamw", accumulate=1, clip=None, num_steps=NUM_STEPS):
    """Train with plain PyTorch on the same micro-batches, in the order of the ranks."""
    device = device_type()
    model = make_model(kind).to(device)
    stepping = OPTIMIZERS[optimizer](trainable(model))
    rows = [row.to(device) for row in make_batches(num_steps * accumulate * num_ranks)]
    num_micro = accumulate * num_ranks
    norms = []
    for step in range(num_steps):
        for micro in rows[step * num_micro : (step + 1) * num_micro]:
            (model(micro).square().mean() / num_micro).backward()
        if clip is not None:
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip))
        stepping.step()
        stepping.zero_grad()
    return norms, model.state_dict()


def assert_same_state(ours, theirs, *, atol=0.0, but=()):
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        if name not in but:
            torch.testing.assert_close(
                ours[name], value, rtol=0, atol=max(atol, ATOL), msg=lambda text, name=name: f"{name}: {text}"
            )


@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        ("odd", "fsdp2"),
        ("tied", "fsdp2"),
        ("buffered", "fsdp2"),
        ("tied", "fsdp1"),
        ("odd", "fsdp1-grad"),
        ("buffered", "fsdp1-whole"),
    ],
)
def test_two_ranks_train_bit_for_bit_as_one_process(world, device, kind, engine):
    _, expected = world(1).run(train_alone, kind, num_ranks=2)[0]
    (_, _, state), (_, _, other) = world(2).run(train_in_ranks, kind, engine=engine)
    # Each rank counts its own calls.
    assert_same_state(state, expected, but=("count",))
    assert not other


def test_adapters_next_to_a_frozen_model_are_trained(world):
    _, expected = world(1).run(train_alone, "adapted", num_ranks=2)[0]
    (_, _, state), _ = world(2).run(train_in_ranks, "adapted")
    # Gradients of the two branches meet in another order around the hooks of a unit.
    assert_same_state(state, expected, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adagrad", "sgd"])
def test_state_that_an_optimizer_had_before_is_kept(world, optimizer):
    _, expected = world(1).run(train_alone, num_ranks=2, optimizer=optimizer)[0]
    (_, _, state), _ = world(2).run(train_in_ranks, optimizer=optimizer)
    assert_same_state(state, expected)


@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1-whole"])
def test_gradients_are_clipped_by_the_norm_of_the_whole(world, device, engine):
    norms, expected = world(1).run(train_alone, num_ranks=2, clip=0.1)[0]
    (_, ours, state), (_, others, _) = world(2).run(train_in_ranks, engine=engine, clip=0.1)
    assert all(type(norm) is torch.Tensor for norm in ours)
    assert [norm.item() for norm in ours] == [norm.item() for norm in others]
    torch.testing.assert_close(torch.stack(ours), torch.stack(norms), rtol=RTOL, atol=0)
    assert_same_state(state, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("engine", "layout"),
    [
        ("fsdp2", {"dp_replicate_size": 2, "dp_shard_size": 2}),
        ("fsdp2", {"dp_replicate_size": 4}),
        ("fsdp2", {"dp_shard_size": 4}),
        ("fsdp1", {"dp_shard_size": 4}),
        ("fsdp1-hybrid", {"dp_replicate_size": 2, "dp_shard_size": 2}),
        ("fsdp1-hybrid-grad", {"dp_replicate_size": 2, "dp_shard_size": 2}),
        ("fsdp1-hybrid", {"dp_replicate_size": 4}),
    ],
)
def test_four_ranks_in_any_layout_train_as_one_process(world, device, engine, layout):
    norms, expected = world(1).run(train_alone, num_ranks=4, optimizer="sgd", accumulate=2, clip=0.5)[0]
    (_, ours, state), *others = world(4).run(
        train_in_ranks, engine=engine, layout=layout, optimizer="sgd", accumulate=2, clip=0.5
    )
    assert_same_state(state, expected, atol=1e-6)
    torch.testing.assert_close(torch.stack(ours), torch.stack(norms), rtol=RTOL, atol=0)
    assert all(torch.stack(ours).equal(torch.stack(theirs)) for _, theirs, _ in others)


def test_all_ranks_begin_with_the_weights_of_rank_0(world):
    _, expected = world(1).run(train_alone, "buffered", num_ranks=2)[0]
    (_, _, state), _ = world(2).run(train_in_ranks, "buffered", seed_of_rank=True)
    assert_same_state(state, expected, but=("count",))


@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1"])
def test_one_process_alone_is_sharded_the_same_way(world, device, engine):
    _, expected = world(1).run(train_alone, num_ranks=1)[0]
    ((_, _, state),) = world(1).run(train_in_ranks, engine=engine)
    assert_same_state(state, expected)


def test_units_that_are_gathered_ahead_have_the_same_values(world, device):
    ahead = {"num_forward_prefetch": 2, "num_backward_prefetch": 2}
    _, expected = world(1).run(train_alone, num_ranks=2)[0]
    (_, _, state), _ = world(2).run(train_in_ranks, plugin=ahead)
    assert_same_state(state, expected)


def test_parameters_stay_gathered_among_some_ranks_until_the_backward_pass(world, device):
    _, expected = world(1).run(train_alone, num_ranks=4)[0]
    (_, _, state), *_ = world(4).run(train_in_ranks, plugin={"reshard_after_forward": 2})
    assert_same_state(state, expected, atol=1e-6)
    with pytest.raises(ConfigError, match="is 3, which does not divide the 4 ranks that share parameters"):
        world(4).run(train_in_ranks, plugin={"reshard_after_forward": 3})


def second_dimension(parameter):
    return Shard(1) if parameter.dim() == 2 and parameter.shape[1] % 2 == 0 else None


def prepared_with(seed, **plugin):
    accelerator = Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2, **plugin))
    return accelerator, accelerator.prepare(make_model("tied", seed=seed))


def save_columns(folder):
    accelerator, model = prepared_with(7, shard_placement_fn=second_dimension)
    accelerator.save_state(folder)
    return {parameter.placements[0].dim for parameter in model.parameters()}, accelerator.get_state_dict(
        model
    )


def load_rows(folder):
    accelerator, model = prepared_with(99)
    accelerator.load_state(folder)
    return accelerator.get_state_dict(model)


def test_parameters_are_sharded_along_the_dimension_of_the_function(world, tmp_path):
    _, expected = world(1).run(train_alone, "tied", num_ranks=2)[0]
    (_, _, state), _ = world(2).run(train_in_ranks, "tied", plugin={"shard_placement_fn": second_dimension})
    assert_same_state(state, expected)
    (dims, saved), _ = world(2).run(save_columns, tmp_path / "a")
    assert dims == {0, 1}
    assert_same_state(world(3).run(load_rows, tmp_path / "a")[0], saved)


SHARED_LAYERS = [
    ({"tp_size": 2}, "by layout", "shared", {}),
    ({"tp_size": 2}, "fsdp2", "shared-tied", {"accumulate": 2, "plugin": {"activation_checkpointing": True}}),
    ({"tp_size": 2}, "by layout", "shared-dropout", {"seed_of_rank": True}),
    ({"tp_size": 2}, "by layout", "shared-sequence", {}),
    ({"tp_size": 2, "dp_shard_size": 2}, "fsdp2", "shared", {"accumulate": 2}),
    ({"tp_size": 2, "dp_shard_size": 2}, "by layout", "shared-packed", {}),
    ({"tp_size": 2, "dp_shard_size": 2}, "by layout", "shared-sequence", {}),
    ({"tp_size": 4}, "by layout", "shared", {"accumulate": 2}),
]
"""Layouts, and what is trained in them how."""


@pytest.mark.parametrize(("layout", "engine", "kind", "options"), SHARED_LAYERS)
def test_ranks_that_share_layers_train_as_one_process(world, device, layout, engine, kind, options):
    steps = {"optimizer": "sgd", "clip": 0.1, "accumulate": options.get("accumulate", 1)}
    num_data_ranks = layout.get("dp_shard_size", 1)
    norms, expected = world(1).run(train_alone, kind, num_ranks=num_data_ranks, **steps)[0]
    (losses, ours, state), *others = world(layout["tp_size"] * num_data_ranks).run(
        train_in_ranks, kind, engine=engine, layout=layout, **{**steps, **options}
    )
    assert_same_state(state, expected, atol=1e-6)
    torch.testing.assert_close(torch.stack(ours), torch.stack(norms), rtol=RTOL, atol=0)
    assert all(torch.stack(ours).equal(torch.stack(theirs)) for _, theirs, _ in others)
    assert torch.stack(losses).equal(torch.stack(others[0][0]))  # the first two ranks have the same batches


def gradients_in_ranks(kind, layout):
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(**layout) if layout else None)
    model = accelerator.prepare(make_model(kind))
    rows = torch.stack(make_batches(2))  # for two data ranks, or both for one
    ranks = current_runtime().layout
    own = (
        rows[ranks.index(accelerator.process_index, *DATA_AXES)]
        if ranks.num_data_ranks == 2
        else rows.flatten(0, 1)
    )
    loss = model(own).square().mean()
    accelerator.backward(loss)
    gradients = {name: one.grad for name, one in model.named_parameters()}
    gradients = {
        name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in gradients.items()
    }
    return accelerator.reduce(loss.detach(), "mean"), gradients


@pytest.mark.parametrize("kind", ["shared", "shared-tied"])
@pytest.mark.parametrize("layout", [{"tp_size": 2}, {"tp_size": 2, "dp_shard_size": 2}])
def test_losses_and_gradients_of_shared_layers_are_those_of_one_process(world, kind, layout):
    [(loss, gradients)] = world(1).run(gradients_in_ranks, kind, None)
    for own_loss, own in world(2 * layout.get("dp_shard_size", 1)).run(gradients_in_ranks, kind, layout):
        torch.testing.assert_close(own_loss, loss, rtol=1e-6, atol=0)
        for name, gradient in gradients.items():
            # A shift of all keys changes no attention: their bias has a gradient of rounding errors alone.
            least = gradients[name.replace(".bias", ".weight")].norm()
            assert (own[name] - gradient).norm() <= 1e-5 * max(gradient.norm(), least), name


def activations_with_dropout():
    """Return what the blocks hand on, of the same rows on every rank."""
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(dp_shard_size=2, tp_size=2))
    set_seed(5, device_specific=True)
    model = accelerator.prepare(Shared(dropout=0.5))
    seen = []
    for block in model.blocks:
        block.register_forward_hook(lambda block, inputs, output: seen.append(output.detach()))
    for rows in make_batches(2):
        model(rows[:1])
    return torch.stack(seen)


def test_tp_ranks_drop_out_alike_and_data_ranks_do_not(world):
    first, again, second, other = world(4).run(activations_with_dropout)
    assert torch.equal(first, again)
    assert torch.equal(second, other)
    assert all(not torch.equal(one, two) for one, two in zip(first, second, strict=True))


SPREAD_EXPERTS = [
    ("mixture", {"ep_size": 2}),
    ("mixture", {"ep_size": 2, "tp_size": 2}),
    ("mixture", {"ep_size": 2, "dp_shard_size": 2}),
    ("mixture", {"ep_size": 2, "dp_shard_size": 4}),
    ("mixture", {"ep_size": 2, "dp_shard_size": 2, "dp_replicate_size": 2}),
    ("mixture", {"ep_size": 2, "dp_shard_size": 2, "tp_size": 2}),
]
"""Models, and how their ranks are arranged."""


@pytest.mark.parametrize(("kind", "layout"), SPREAD_EXPERTS)
def test_ranks_that_share_experts_train_as_one_process(world, device, kind, layout):
    ranks = ParallelismConfig(**layout).layout
    steps = {"optimizer": "sgd", "clip": 0.1, "accumulate": 2}
    norms, expected = world(1).run(train_alone, kind, num_ranks=ranks.num_data_ranks, **steps)[0]
    (_, ours, state), *others = world(ranks.world_size).run(
        train_in_ranks, kind, engine="by layout", layout=layout, **steps
    )
    assert_same_state(state, expected, atol=1e-6)
    torch.testing.assert_close(torch.stack(ours), torch.stack(norms), rtol=RTOL, atol=0)
    assert all(torch.stack(ours).equal(torch.stack(theirs)) for _, theirs, _ in others)


def held_of_experts():
    """Return the bytes that this rank stores."""
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(dp_shard_size=4, ep_size=2))
    model = accelerator.prepare(make_model("mixture"))
    return {name: one.to_local().nbytes for name, one in model.named_parameters()}


def test_the_first_rank_stores_what_the_plan_reports(world):
    model = make_model("mixture")
    [stage] = planned_step(model, resolve_plan(model), MeshLayout(dp_shard=4, ep=2), Step())
    told = {one.name: one.num_local for unit in stage.units for one in unit.parameters}
    ranks = world(4).run(held_of_experts)
    assert ranks[0] == told
    most, *others = [held["blocks.0.experts.up"] for held in ranks]
    assert others == [most, most // 2, most // 2]
