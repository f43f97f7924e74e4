"""Two real processes must train exactly as one with the same global batch."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accel_backends import (
    AutocastKwargs,
    Bundle,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    StrategyContext,
    Sync,
    collect,
    full_model_state,
    select_precision,
    select_strategy,
    trigger_sync_in_backward,
)
from accel_backends.strategies.ddp import DDPStrategy, ddp_of
from accel_state import PartialState
from accel_state.runtime import current_runtime
from tools.harness.device import on_cpu

NUM_STEPS = 5


class Net(nn.Module):
    """A small net with a buffer that depends on nothing but its own batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.second = nn.Linear(5, 3)
        self.register_buffer("num_calls", torch.zeros(()))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        return self.second(torch.tanh(self.first(rows)))


class TiedNet(nn.Module):
    """Encoder and decoder share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, 6, bias=False)
        self.decoder = nn.Linear(6, 6, bias=False)
        self.decoder.weight = self.encoder.weight

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.decoder(torch.tanh(self.encoder(rows)))


def strategy_for(precision="no", handlers=(), **context):
    runtime = current_runtime()
    found = collect(handlers)
    chosen = select_precision(precision, device_backend=runtime.device_backend, handlers=found)
    strategy = select_strategy(topology=runtime.topology)
    strategy.setup(StrategyContext(runtime, chosen, handlers=found, **context))
    return strategy


def seeded(kind=Net, dtype=torch.float64):
    torch.manual_seed(7)
    return kind().to(dtype)


def batches(num_rows=8, num=NUM_STEPS, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(num_rows, 6, generator=generator, dtype=dtype) for _ in range(num)]


def weights_of(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def train(kind=Net, *, num_micro_batches=1, handlers=(), precision="no", dtype=torch.float64, num=NUM_STEPS):
    """Train on this rank's share of each global batch, in micro-batches, and return each step's weights."""
    strategy = strategy_for(precision, handlers)
    topology = current_runtime().topology
    model = seeded(kind, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    prepared = strategy.prepare(Bundle(models=[model], optimizers=[optimizer]))
    model, optimizer = prepared.models[0], prepared.optimizers[0]
    history = []
    for rows in batches(num=num, dtype=dtype):
        share = rows.to(current_runtime().device).chunk(topology.world_size)[topology.rank]
        for index, micro in enumerate(share.chunk(num_micro_batches)):
            is_last = index == num_micro_batches - 1
            strategy.context.gradient._set_sync_gradients(is_last)
            with strategy.gradient_sync(model, sync=Sync.NOW if is_last else Sync.LATER):
                strategy.backward(model(micro).square().mean() / num_micro_batches)
            optimizer.step()
            optimizer.zero_grad()
        history.append(weights_of(model))
    return history


def assert_equal_history(ours, theirs, atol):
    assert len(ours) == len(theirs)
    for one, other in zip(itertools.chain(*ours), itertools.chain(*theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=atol)


@pytest.fixture
def alone(fresh_state):
    """The state of one process on the CPU."""
    return PartialState(cpu=True)


@pytest.mark.parametrize("kind", [Net, TiedNet])
@pytest.mark.parametrize("options", [{}, {"static_graph": True}, {"gradient_as_bucket_view": True}])
def test_two_ranks_train_as_one_process_with_the_same_global_batch(world, device, alone, kind, options):
    expected = train(kind)
    for ours in world(2).run(train, kind, handlers=[DistributedDataParallelKwargs(**options)]):
        # Sums over 8 rows in another order: a few units in the last place of fp64, times five AdamW steps.
        assert_equal_history(ours, expected, atol=1e-12 if on_cpu() else 1e-10)


@pytest.mark.parametrize("num_micro_batches", [2, 4])
def test_accumulated_micro_batches_train_as_one_batch(world, device, alone, num_micro_batches):
    expected = train()
    for ours in world(2).run(train, num_micro_batches=num_micro_batches):
        assert_equal_history(ours, expected, atol=1e-12 if on_cpu() else 1e-10)


def body_counts_reductions():
    strategy = strategy_for()
    model = strategy.prepare_model(seeded())
    num_reductions = []

    def count(state, bucket):
        num_reductions.append(1)
        work = dist.all_reduce(bucket.buffer().div_(2), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    model.register_comm_hook(None, count)
    share = batches()[0].chunk(2)[dist.get_rank()]
    counts = []
    for enabled in (False, False, True):
        with strategy.gradient_sync(model, sync=Sync.NOW if enabled else Sync.LATER):
            strategy.backward(model(share).sum())
        counts.append(len(num_reductions))
    return counts, [parameter.grad for parameter in model.parameters()]


def test_deferred_micro_batches_reduce_nothing_and_the_last_reduces_all(world):
    (first, first_grads), (second, second_grads) = world(2).run(body_counts_reductions)
    assert first == second
    assert first[:2] == [0, 0]
    assert first[2] > 0
    for one, other in zip(first_grads, second_grads, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def body_trigger_sync():
    strategy = strategy_for()
    model = strategy.prepare_model(seeded())
    share = batches()[0].chunk(2)[dist.get_rank()]
    with strategy.gradient_sync(model, sync=Sync.LATER):
        loss = model(share).sum()
        with trigger_sync_in_backward(model):
            strategy.backward(loss)
        deferred_again = not model.require_backward_grad_sync
    return deferred_again, [parameter.grad for parameter in model.parameters()]


def test_a_backward_can_sync_although_its_forward_deferred_that(world):
    (deferred_first, first), (deferred_second, second) = world(2).run(body_trigger_sync)
    reference = seeded()
    (reference(batches()[0]).sum() / 2).backward()
    assert deferred_first
    assert deferred_second
    for one, other, expected in zip(first, second, reference.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
        torch.testing.assert_close(one, expected.grad, rtol=0, atol=1e-12 if on_cpu() else 1e-10)


def body_wrapping():
    strategy = strategy_for()
    frozen = seeded()
    frozen.requires_grad_(False)
    by_hand = DistributedDataParallel(seeded())
    prepared = strategy.prepare_model(seeded())
    evaluated = strategy.prepare_model(seeded(), evaluation_mode=True)
    plain = seeded()
    return {
        "frozen is left alone": strategy.prepare_model(frozen) is frozen,
        "wrapped by hand is left alone": strategy.prepare_model(by_hand) is by_hand,
        "prepared twice is left alone": strategy.prepare_model(prepared) is prepared,
        "trained is wrapped": isinstance(prepared, DistributedDataParallel),
        "evaluated is not wrapped": not isinstance(evaluated, DistributedDataParallel),
        "unwrapped is the original": strategy.unwrap(strategy.prepare_model(plain)) is plain,
        "cpu models get no device ids": prepared.device_ids is None,
        "nothing to defer on what is not wrapped": ddp_of(frozen) is None,
    }


def test_only_a_model_that_is_trained_is_wrapped_and_only_once(world):
    for facts in world(2).run(body_wrapping):
        assert facts == dict.fromkeys(facts, True)


def body_handler():
    handler = DistributedDataParallelKwargs(static_graph=True, bucket_cap_mb=1, comm_hook="fp16")
    model = strategy_for(handlers=[handler]).prepare_model(seeded())
    return model.static_graph, model.bucket_bytes_cap, len(model._comm_hooks)


def test_the_handler_sets_up_the_wrapper_and_its_hook(world):
    assert world(2).run(body_handler) == [(True, 1024 * 1024, 1)] * 2


def body_buffers():
    strategy = strategy_for()
    model = strategy.prepare_model(nn.BatchNorm1d(6).double())
    torch.manual_seed(dist.get_rank())
    for _ in range(2):
        model(torch.randn(4, 6, dtype=torch.float64))
    model(torch.randn(4, 6, dtype=torch.float64))
    before = model.module.running_mean.clone()
    model.eval()(torch.randn(1, 6, dtype=torch.float64))
    return before, model.module.running_mean.clone(), model.module.num_batches_tracked.item()


def test_buffers_follow_rank_zero(world):
    (first_before, first, count), (second_before, second, _) = world(2).run(body_buffers)
    assert count == 3
    assert not torch.equal(first_before, second_before)
    assert torch.equal(first, first_before)
    assert torch.equal(second, first)


def body_state():
    strategy = strategy_for()
    model = seeded()
    keys = list(model.state_dict())
    wrapped = strategy.prepare_model(model)
    state = full_model_state(strategy, model)
    doubled = {key: value * 2 for key, value in state.items()}
    result = strategy.load_model_state(model, doubled)
    missing = strategy.load_model_state(model, {}, strict=False).missing_keys
    loaded = all(torch.equal(value, doubled[key]) for key, value in wrapped.module.state_dict().items())
    return list(state) == keys, loaded, list(result), sorted(missing) == sorted(keys)


def test_states_have_the_keys_of_the_users_model(world):
    for same_keys, loaded, incompatible, all_missing in world(2).run(body_state):
        assert same_keys
        assert loaded
        assert all_missing
        assert incompatible == [[], []]


def body_join():
    strategy = strategy_for()
    model = strategy.prepare_model(seeded())
    num_batches = 2 + dist.get_rank()
    with strategy.join_uneven_inputs([model]):
        for rows in batches(num=num_batches):
            strategy.backward(model(rows).sum())
            model.zero_grad()
    return num_batches


def test_ranks_may_run_out_of_batches_at_different_times(world):
    assert world(2).run(body_join) == [2, 3]


def body_join_of_others():
    strategy = strategy_for()
    model, frozen = strategy.prepare_model(seeded()), seeded().requires_grad_(False)

    def train(models):
        with strategy.join_uneven_inputs(models):
            for rows in batches(num=1 + dist.get_rank()) if model in models else ():
                strategy.backward(model(rows).sum())

    with pytest.warns(UserWarning, match="only supported for multi-GPU"):
        train([frozen])
    with pytest.warns(UserWarning, match="no effect on the others"):
        train([frozen, model])
    return dist.get_rank()


def test_joining_models_that_are_not_wrapped_warns_and_joins_the_others(world):
    assert world(2).run(body_join_of_others) == [0, 1]


def test_bf16_trains_close_to_full_precision_and_alike_on_both_ranks(world, alone):
    expected = train(dtype=torch.float32)
    first, second = world(2).run(train, precision="bf16", dtype=torch.float32)
    assert_equal_history(first, second, atol=0)
    # AdamW moves each weight by at most lr = 0.01 per step, and bf16 has 8 bits: 5 steps stay within 0.05.
    assert_equal_history(first, expected, atol=0.05)
    assert not all(torch.equal(a, b) for a, b in zip(first[-1], expected[-1], strict=True))


def body_overflow():
    handlers = [GradScalerKwargs(init_scale=1024.0)]
    strategy = strategy_for("fp16", handlers)
    precision = strategy.context.precision
    model = seeded(dtype=torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    prepared = strategy.prepare(Bundle(models=[model], optimizers=[optimizer], schedulers=[scheduler]))
    model, optimizer, scheduler = prepared.models[0], prepared.optimizers[0], prepared.schedulers[0]
    story = []
    for index, rows in enumerate(batches(num=3, dtype=torch.float32)):
        before = weights_of(model)
        share = rows.chunk(2)[dist.get_rank()]
        loss = model(share).square().mean()
        if index == 1 and dist.get_rank() == 1:
            loss = loss * 1e38  # overflows on one rank only; the reduction tells the other
        strategy.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        moved = not all(torch.equal(a, b) for a, b in zip(before, weights_of(model), strict=True))
        story.append(
            (optimizer.step_was_skipped, moved, precision.scaler.get_scale(), scheduler.get_last_lr())
        )
    return story


def test_an_overflow_skips_the_step_halves_the_scale_and_stills_the_scheduler_on_every_rank(world):
    # Two processes without split batches: the schedule moves two steps per optimizer step, 0.1 -> 0.025.
    expected = [
        (False, True, 1024.0, [0.025]),
        (True, False, 512.0, [0.025]),
        (False, True, 512.0, [0.00625]),
    ]
    for story in world(2).run(body_overflow):
        assert story == expected


def body_autocast_outputs():
    strategy = strategy_for("bf16", [AutocastKwargs(cache_enabled=False)])
    model = strategy.prepare_model(seeded(dtype=torch.float32))
    inner = []
    model.module.second.register_forward_hook(lambda module, inputs, output: inner.append(output.dtype))
    output = model(batches(dtype=torch.float32)[0])
    copied = copy.deepcopy(model.module)
    return inner[0], output.dtype, copied(batches(dtype=torch.float32)[0]).dtype


def test_wrapped_models_compute_in_bf16_and_return_fp32(world):
    for inner, outer, copied in world(2).run(body_autocast_outputs):
        assert (inner, outer, copied) == (torch.bfloat16, torch.float32, torch.float32)


class PatientStrategy(DDPStrategy):
    """A user's own, which a plugin names for any number of processes."""

    name = "patient"


def test_ddp_in_one_process_trains_the_model_as_it_is(alone):
    runtime = current_runtime()
    precision = select_precision("no", device_backend=runtime.device_backend)
    strategy = PatientStrategy()
    strategy.setup(StrategyContext(runtime, precision))
    model = seeded()
    assert strategy.prepare_model(model) is model
    optimizer = strategy.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    before = weights_of(model)
    strategy.backward(model(batches()[0]).sum())
    optimizer.step()
    assert not torch.equal(before[0], weights_of(model)[0])


def body_compiled():
    from accel_backends import TorchDynamoPlugin

    strategy = strategy_for(dynamo=TorchDynamoPlugin(backend="eager"))
    original = seeded()
    model = strategy.prepare_model(original)
    share = batches()[0].chunk(2)[dist.get_rank()]
    with strategy.gradient_sync(model, sync=Sync.LATER):
        strategy.backward(model(share).sum())
    first = [parameter.grad.clone() for parameter in original.parameters()]
    model.zero_grad()
    strategy.backward(model(share).sum())
    second = [parameter.grad.clone() for parameter in original.parameters()]
    return (
        isinstance(model, DistributedDataParallel),
        sorted(full_model_state(strategy, strategy.unwrap(model, keep_torch_compile=False)))
        == sorted(original.state_dict()),
        strategy.unwrap(model, keep_torch_compile=False) is original,
        first,
        second,
    )


def test_a_compiled_model_is_wrapped_after_compilation_and_still_defers_and_reduces(world):
    one, other = world(2).run(body_compiled)
    assert all(one[:3])
    assert all(other[:3])
    assert not torch.equal(one[3][0], other[3][0])
    for left, right in zip(one[4], other[4], strict=True):
        assert torch.equal(left, right)
