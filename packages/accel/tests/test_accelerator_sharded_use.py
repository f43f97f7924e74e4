"""What users do with sharded models next to one optimizer and one loop."""

import warnings

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from accel import (
    Accelerator,
    FullyShardedDataParallelPlugin,
    GradScalerKwargs,
    LocalSGD,
    ParallelismConfig,
    PartialState,
)
from accel.planning.step import Step, planned_step
from accel_backends import resolve_plan
from accel_state.errors import ConfigError, DistributedOperationException
from accel_state.mesh_layout import MeshLayout
from accel_state.runtime import current_runtime, reset_runtime
from accel_state.versions import is_torch_version
from tools.harness.models import make_batches, make_model


def sharded(precision="no", accumulate=1, **plugin):
    return Accelerator(
        cpu=True,
        mixed_precision=precision,
        gradient_accumulation_steps=accumulate,
        fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2, **plugin),
    )


def step(accelerator, model, optimizer, rows):
    loss = model(rows).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def whole(model):
    return {name: value.full_tensor() for name, value in model.named_parameters()}


def local_parts(model):
    values = [parameter.detach() for parameter in model.parameters()]
    return [(one.to_local() if isinstance(one, DTensor) else one).clone() for one in values]


def evaluate_then_train():
    accelerator = sharded()
    model, rows = make_model("odd"), make_batches(4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    prepared = accelerator.prepare(model)
    with torch.inference_mode():
        before = prepared(rows[0])
    optimizer = accelerator.prepare(optimizer)
    for index in range(2):
        step(accelerator, prepared, optimizer, rows[2 * index + accelerator.process_index])
    return before, whole(prepared)


def test_a_model_is_evaluated_first_and_gets_its_optimizer_later(world):
    expected = make_model("odd")
    rows, optimizer = make_batches(4), torch.optim.AdamW(expected.parameters(), lr=0.01)
    before = expected(rows[0]).detach()
    for pair in (rows[:2], rows[2:]):
        for micro in pair:
            (expected(micro).square().mean() / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    for output, weights in world(2).run(evaluate_then_train):
        torch.testing.assert_close(output, before, rtol=0, atol=1e-6)
        for name, value in expected.named_parameters():
            torch.testing.assert_close(weights[name], value.detach(), rtol=0, atol=1e-6)


def train_after_evaluation(without_gradients):
    accelerator = sharded()
    rank, rows = accelerator.process_index, make_batches(4)
    model = accelerator.prepare(make_model("odd"))
    with torch.set_grad_enabled(not without_gradients):
        model(rows[0])
    # The parameters of the root are gathered now.
    optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    norms = []
    for index in range(2):
        accelerator.backward(model(rows[2 * index + rank]).square().mean())
        with torch.no_grad():
            model(rows[0])
        norms.append(accelerator.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
        optimizer.zero_grad()
    return norms, accelerator.get_state_dict(model)


@pytest.mark.parametrize("without_gradients", [True, False])
def test_an_optimizer_made_after_an_evaluation_trains_everything(world, without_gradients):
    model, rows, expected = make_model("odd"), make_batches(4), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for pair in (rows[:2], rows[2:]):
        for micro in pair:
            (model(micro).square().mean() / 2).backward()
        expected.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
        optimizer.zero_grad()
    (norms, state), _ = world(2).run(train_after_evaluation, without_gradients)
    torch.testing.assert_close(torch.stack(norms), torch.stack(expected), rtol=1e-5, atol=0)
    for name, value in model.named_parameters():
        torch.testing.assert_close(state[name], value.detach(), rtol=0, atol=1e-6)


class Experts(nn.Module):
    """Each batch goes through one expert of each block."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.blocks = nn.ModuleList(nn.ModuleList(nn.Linear(7, 7) for _ in range(3)) for _ in range(2))
        self.head = nn.Linear(7, 1)

    def forward(self, rows, expert):
        for block in self.blocks:
            rows = rows + torch.tanh(block[expert](rows))
        return self.head(rows)


def gradients_of_experts():
    accelerator = sharded(auto_wrap_policy="no_wrap")
    rank, rows = accelerator.process_index, make_batches(2)
    model = accelerator.prepare(Experts())
    accelerator.backward(model(rows[rank], rank).square().mean())
    return {
        name: None if value.grad is None else value.grad.full_tensor()
        for name, value in model.named_parameters()
    }


def test_ranks_that_use_different_experts_train_them_as_one_process(world):
    model, rows = Experts(), make_batches(2)
    for rank in range(2):
        (model(rows[rank], rank).square().mean() / 2).backward()
    for gradients in world(2).run(gradients_of_experts):
        for name, value in model.named_parameters():
            if value.grad is None:  # no rank has used it
                assert gradients[name] is None
            else:
                torch.testing.assert_close(gradients[name], value.grad, rtol=0, atol=1e-7)


def train_two_models():
    accelerator = sharded()
    rank, rows = accelerator.process_index, make_batches(4)
    generator, critic = make_model("odd"), make_model("buffered", seed=8)
    both = torch.optim.SGD([*generator.parameters(), *critic.parameters()], lr=0.01)
    generator, critic, both = accelerator.prepare(generator, critic, both)
    for index in range(2):
        with accelerator.accumulate(generator, critic):
            micro = rows[2 * index + rank]
            accelerator.backward(critic(micro * generator(micro)).square().mean())
            both.step()
            both.zero_grad()
    return accelerator.get_state_dict(generator), accelerator.get_state_dict(critic)


def test_two_models_with_one_optimizer_train_as_in_one_process(world):
    generator, critic, rows = make_model("odd"), make_model("buffered", seed=8), make_batches(4)
    both = torch.optim.SGD([*generator.parameters(), *critic.parameters()], lr=0.01)
    for pair in (rows[:2], rows[2:]):
        for micro in pair:
            (critic(micro * generator(micro)).square().mean() / 2).backward()
        both.step()
        both.zero_grad()
    states, _ = world(2).run(train_two_models)
    for state, expected in zip(states, (generator, critic), strict=True):
        for name, value in expected.named_parameters():
            torch.testing.assert_close(state[name], value.detach(), rtol=0, atol=1e-6)


def resume_adam_before_preparing():
    model, rows = make_model("odd"), make_batches(6)
    optimizer = torch.optim.AdamW(
        [
            {"params": model.blocks.parameters(), "lr": 0.02},
            {"params": model.head.parameters(), "weight_decay": 0.3},
        ],
        lr=0.01,
    )
    for micro in rows[:2]:
        (model(micro).square().mean() / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
    accelerator = sharded()
    model, optimizer = accelerator.prepare(model, optimizer)
    step(accelerator, model, optimizer, rows[2 + accelerator.process_index])
    return accelerator.get_state_dict(model), [group["lr"] for group in optimizer.param_groups]


def test_an_optimizer_that_has_stepped_continues_with_its_state_and_groups(world):
    model, rows = make_model("odd"), make_batches(6)
    optimizer = torch.optim.AdamW(
        [
            {"params": model.blocks.parameters(), "lr": 0.02},
            {"params": model.head.parameters(), "weight_decay": 0.3},
        ],
        lr=0.01,
    )
    for pair in (rows[:2], rows[2:4]):
        for micro in pair:
            (model(micro).square().mean() / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    (state, rates), _ = world(2).run(resume_adam_before_preparing)
    assert rates == [0.02, 0.01]
    for name, value in model.named_parameters():
        torch.testing.assert_close(state[name], value.detach(), rtol=0, atol=1e-6)


def build_on_rank_0_only(kind):
    accelerator = sharded()
    rank, rows = accelerator.process_index, make_batches(4)
    with torch.device("cpu" if rank == 0 else "meta"):
        model = make_model(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    for index in range(2):
        step(accelerator, model, optimizer, rows[2 * index + rank])
    buffers = {name: value.clone() for name, value in accelerator.unwrap_model(model).named_buffers()}
    return accelerator.get_state_dict(model), buffers


@pytest.mark.parametrize("kind", ["odd", "tied", "buffered"])
def test_ranks_without_values_get_those_of_rank_0_buffers_included(world, kind):
    model, rows = make_model(kind), make_batches(4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for pair in (rows[:2], rows[2:]):
        for micro in pair:
            (model(micro).square().mean() / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    (state, buffers), (_, others) = world(2).run(build_on_rank_0_only, kind)
    for name, value in model.named_parameters():
        torch.testing.assert_close(state[name], value.detach(), rtol=0, atol=1e-6)
    for name, value in model.named_buffers():
        if name != "count":
            assert torch.equal(buffers[name], value)
            assert torch.equal(others[name], value)


def gradients_with_dropout(checkpointed):
    accelerator = sharded(activation_checkpointing=checkpointed)
    model = accelerator.prepare(make_model("dropout"))
    torch.manual_seed(5 + accelerator.process_index)
    accelerator.backward(model(make_batches(2)[accelerator.process_index]).square().mean())
    return {name: value.grad.full_tensor() for name, value in model.named_parameters()}


def test_dropout_has_the_same_gradients_with_activation_checkpointing(world):
    plain, checkpointed = (
        world(2).run(gradients_with_dropout, False),
        world(2).run(gradients_with_dropout, True),
    )
    assert list(plain[0]) == list(checkpointed[0])
    for name, value in plain[0].items():
        assert torch.equal(checkpointed[0][name], value)


class Recorder(nn.Module):
    """Tells the types that it computes in."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(7, 3)
        self.seen = []

    def forward(self, rows):
        self.seen += [rows.dtype, self.inner.weight.dtype]
        return {"logits": self.inner(rows)}


def types_under(precision, stored):
    accelerator = sharded(precision)
    model = Recorder().to(stored)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    output = model(make_batches(1)[0])["logits"]
    accelerator.backward(output.sum())
    return (
        model.seen,
        output.dtype,
        {parameter.dtype for parameter in model.parameters()},
        {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None},
        {values["exp_avg"].dtype for values in optimizer.state.values()} if optimizer.state else None,
    )


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_bf16_computes_in_bf16_and_keeps_everything_else_in_fp32(world, stored):
    fp32, bf16 = torch.float32, torch.bfloat16
    for seen, output, stored_as, gradients, _ in world(2).run(types_under, "bf16", stored):
        assert seen == [fp32, bf16]
        assert output is fp32
        assert stored_as == gradients == {fp32}


class Scaled(nn.Module):
    """Has a parameter that stays replicated next to sharded ones."""

    def __init__(self):
        super().__init__()
        self.inner = make_model("odd")
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, rows):
        return self.inner(rows) * self.scale


def overflow_on_one_rank():
    accelerator = Accelerator(
        cpu=True,
        mixed_precision="fp16",
        kwargs_handlers=[GradScalerKwargs(init_scale=16.0)],
        fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2),
    )
    model = Scaled()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    outcomes = []
    for scale in (1.0, float("inf")):
        loss = model(make_batches(1)[0]).square().mean()
        accelerator.backward(loss)
        if accelerator.process_index == 1 and scale > 1:
            gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
            cut = [one.to_local() for one in gradients if hasattr(one, "to_local")]
            cut[0].fill_(float("inf"))
        kept = local_parts(model)
        optimizer.step()
        was_kept = all(map(torch.equal, kept, local_parts(model)))
        outcomes.append((accelerator.optimizer_step_was_skipped, was_kept))
        optimizer.zero_grad()
    return outcomes


def test_all_ranks_skip_a_step_that_overflowed_on_one(world):
    for outcomes in world(2).run(overflow_on_one_rank):
        assert outcomes == [(False, False), (True, True)]


def step_what_one_rank_holds():
    accelerator = sharded("fp16")
    model = make_model("odd")
    model, optimizer = accelerator.prepare(model, torch.optim.SGD([model.head.weight], lr=0.1))
    for rows in make_batches(8):  # the first overflow
        accelerator.backward(model(rows).square().mean())
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model.head.weight.to_local().numel(), accelerator.get_state_dict(model)


def test_a_rank_without_a_part_of_what_is_stepped_steps_with_the_others(world):
    (first, state), (second, _) = world(2).run(step_what_one_rank_holds)
    assert (first, second) == (33, 0)
    assert not torch.equal(state["head.weight"], make_model("odd").head.weight)
    assert torch.equal(state["first.weight"], make_model("odd").first.weight)


def train_weighted(accumulate):
    accelerator = sharded(accumulate=accumulate)
    rank, rows = accelerator.process_index, make_batches(2 * accumulate, rows=6)
    model = make_model("odd")
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for index in range(accumulate):
        with accelerator.accumulate(model):
            num_items = 1 + 2 * rank + index
            loss = model(rows[2 * index + rank][:num_items]).square().mean()
            accelerator.backward(loss, num_items=num_items)
            optimizer.step()
            optimizer.zero_grad()
    return accelerator.get_state_dict(model)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_losses_weigh_by_their_items(world, accumulate):
    model, rows = make_model("odd"), make_batches(2 * accumulate, rows=6)
    items = [
        rows[2 * index + rank][: 1 + 2 * rank + index] for index in range(accumulate) for rank in range(2)
    ]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.cat(items)).square().mean().backward()
    optimizer.step()
    state, _ = world(2).run(train_weighted, accumulate)
    for name, value in model.named_parameters():
        torch.testing.assert_close(state[name], value.detach(), rtol=0, atol=1e-6)


def leave_a_module_whole(accumulate, no_sync):
    accelerator = sharded(ignored_modules="head", accumulate=1 if no_sync else accumulate)
    rank, rows = accelerator.process_index, make_batches(2 * accumulate)
    model = make_model("odd")
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for index in range(accumulate):
        last = index == accumulate - 1
        block = accelerator.no_sync(model) if no_sync and not last else accelerator.accumulate(model)
        with block:
            loss = model(rows[2 * index + rank]).square().mean()
            accelerator.backward(loss / accumulate if no_sync else loss)
    norm = accelerator.clip_grad_norm_(model.parameters(), 1e9)
    optimizer.step()
    assert type(model.head.weight) is nn.Parameter
    return accelerator.get_state_dict(model), norm


@pytest.mark.parametrize(("accumulate", "no_sync"), [(1, False), (2, False), (2, True)])
def test_ignored_modules_stay_unsharded_and_train_alike_on_all_ranks(world, accumulate, no_sync):
    model, rows = make_model("odd"), make_batches(2 * accumulate)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for micro in rows:
        (model(micro).square().mean() / len(rows)).backward()
    expected = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    optimizer.step()
    (state, norm), (_, other) = world(2).run(leave_a_module_whole, accumulate, no_sync)
    assert torch.equal(norm, other)
    torch.testing.assert_close(norm, expected, rtol=1e-6, atol=0)
    for name, value in model.named_parameters():
        torch.testing.assert_close(state[name], value.detach(), rtol=0, atol=1e-6)


def errors_of_bad_use():
    accelerator = sharded()
    found = []

    def expect(message, action):
        with pytest.raises(ConfigError, match=message):
            action()
        found.append(message)

    stray = torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.1)
    model = make_model("odd")
    expect("parameter 0 of group 0, of shape", lambda: accelerator.prepare(model, stray))
    assert type(model.head.weight) is nn.Parameter  # nothing was changed by the failure
    old_head = model.head.weight
    prepared = accelerator.prepare(model)
    expect("parameter 0 of group 0, of shape", lambda: accelerator.prepare(stray))
    expect(
        "`join_uneven_inputs` is not possible", lambda: accelerator.join_uneven_inputs([prepared]).__enter__()
    )
    expect("`LocalSGD` is not possible with the strategy `fsdp", lambda: LocalSGD(accelerator, prepared, 2))
    expect("has no values on rank 0", lambda: accelerator.prepare(make_model("odd").to("meta")))
    different = make_model("odd" if accelerator.is_main_process else "tied")
    expect("The model on rank 1 is not the model on rank 0", lambda: accelerator.prepare(different))
    sharing = make_model("odd")
    sharing.head.weight = old_head
    expect("is part of a model that was prepared before", lambda: accelerator.prepare(sharing))
    return found


def test_what_cannot_be_right_is_refused(world):
    assert world(2).run(errors_of_bad_use)


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        ({"ignored_modules": "nothing.*"}, "`nothing.*`, which matches"),
        ({"auto_wrap_policy": "transformer_based_wrap", "transformer_cls_names_to_wrap": ["Blok"]}, "`Blok`"),
        ({"parallel_plan": {"units": ["layers.*"]}}, "`layers"),
        (
            {"auto_wrap_policy": "no_wrap", "activation_checkpointing": True},
            "`activation_checkpointing` has no effect",
        ),
    ],
)
def test_settings_that_match_nothing_are_refused(fresh_state, plugin, message):
    accelerator = sharded(**plugin)
    with pytest.raises(ConfigError, match=message.replace("*", r"\*")):
        accelerator.prepare(make_model("odd"))


@pytest.mark.parametrize("version", [2, 1])
def test_a_plugin_shows_the_policy_that_the_run_follows_and_follows_the_next_run(fresh_state, version):
    plugin = FullyShardedDataParallelPlugin(fsdp_version=version)
    Accelerator(cpu=True, mixed_precision="bf16", fsdp_plugin=plugin)
    policy = plugin.mixed_precision_policy
    assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)
    assert plugin.chosen_policy is None
    plugin.set_mixed_precision("fp32", override=True)
    assert plugin.chosen_policy is plugin.mixed_precision_policy


def test_a_policy_that_a_library_sets_before_it_prepares_the_model_counts(fresh_state):
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    plugin.set_mixed_precision("bf16", override=True)
    model = accelerator.prepare_model(make_model("odd"))
    assert model(torch.ones(2, 7)).dtype is torch.bfloat16


def test_a_plugin_has_no_policy_if_nothing_is_cast(fresh_state):
    plugin = FullyShardedDataParallelPlugin(fsdp_version=1)
    Accelerator(cpu=True, fsdp_plugin=plugin)
    assert plugin.mixed_precision_policy is None


def train_compiled(backend, checkpointed, **fields):
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    accelerator = Accelerator(
        cpu=True,
        dynamo_backend=backend,
        fsdp_plugin=FullyShardedDataParallelPlugin(
            fsdp_version=2,
            activation_checkpointing=checkpointed != "no",
            selective_checkpointing=checkpointed == "selective",
            **fields,
        ),
    )
    model, rows = make_model("odd"), make_batches(8)
    names = list(model.state_dict())
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert list(model.state_dict()) == names
    graphs = []
    for index in range(4):
        step(accelerator, model, optimizer, rows[2 * index + accelerator.process_index])
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    return graphs, whole(model)


@pytest.mark.parametrize("checkpointed", ["no", "whole", "selective"])
def test_equal_blocks_share_one_compiled_graph(world, checkpointed):
    # Before torch 2.13 its compiler takes the three blocks for different ones once they are checkpointed.
    num_graphs = 1 if checkpointed == "no" or is_torch_version(">=", "2.13") else 3
    (_, expected), _ = world(2).run(train_compiled, "no", checkpointed)
    for graphs, weights in world(2).run(train_compiled, "aot_eager", checkpointed):
        assert graphs == [num_graphs] * 4
        for name, value in expected.items():
            torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-5)


def test_a_model_without_units_is_compiled_as_a_whole(world):
    ((_, expected), _), compiled = [
        world(2).run(train_compiled, backend, "no", auto_wrap_policy="NO_WRAP")
        for backend in ("no", "aot_eager")
    ]
    for graphs, weights in compiled:
        assert graphs == [1] * 4
        for name, value in expected.items():
            torch.testing.assert_close(weights[name], value, rtol=0, atol=1e-5)


def state_after_two_steps(accelerator, model, optimizer):
    rows = make_batches(4)
    for index in range(2):
        loss = model(rows[2 * index + accelerator.process_index]).square().mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return accelerator.get_state_dict(model)


def train_offloaded():
    accelerator = sharded(cpu_offload=True)
    model = make_model("odd")
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    return state_after_two_steps(accelerator, model, optimizer)


def shard_by_hand():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    accelerator = sharded()
    model = make_model("odd")
    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    return state_after_two_steps(accelerator, model, optimizer)


@pytest.mark.parametrize("body", [train_offloaded, shard_by_hand])
def test_shards_on_the_cpu_and_shards_made_by_others_train_as_well(world, body):
    model, rows = make_model("odd"), make_batches(4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for pair in (rows[:2], rows[2:]):
        for micro in pair:
            (model(micro).square().mean() / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    state, _ = world(2).run(body)
    for name, value in model.named_parameters():
        torch.testing.assert_close(state[name], value.detach(), rtol=0, atol=1e-6)


class KeepsFp32(nn.Module):
    """Says as transformers' models do which modules compute in fp32."""

    _keep_in_fp32_modules_strict = ("wo",)

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"wi": nn.Linear(7, 7), "wo": nn.Linear(7, 7)}) for _ in range(2)
        )
        self.seen = []

    def forward(self, rows):
        for block in self.blocks:
            rows = block["wi"](rows.to(block["wi"].weight.dtype))
            self.seen += [block["wi"].weight.dtype, rows.dtype]
            rows = block["wo"](rows.float())
            self.seen += [block["wo"].weight.dtype, rows.dtype]
        return rows


def types_in_parts():
    accelerator = sharded(precision="bf16")
    model = accelerator.prepare(KeepsFp32())
    accelerator.backward(model(make_batches(1)[0]).sum())
    return model.seen


def test_modules_that_are_kept_in_fp32_compute_in_fp32(world):
    for seen in world(2).run(types_in_parts):
        assert seen == 2 * [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]


class Branching(nn.Module):
    """Leaves its second block out on rank 1."""

    parallel_plan = {"units": ["blocks.*"]}

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, rows):
        for index, block in enumerate(self.blocks):
            if index != 1 or PartialState().process_index == 0:
                rows = block(rows)
        return rows


def run_other_units():
    accelerator = sharded()
    current_runtime().debug = True
    model = accelerator.prepare(Branching())
    with pytest.raises(DistributedOperationException) as caught:
        model(torch.ones(2, 6))
    return str(caught.value)


def test_debug_mode_names_the_units_that_differ_between_ranks(world):
    for message in world(2).run(run_other_units):
        assert "Process 0: `forward of blocks.1 of Branching` at" in message
        assert "Process 1: `forward of blocks.2 of Branching` at" in message
        assert "in forward" in message  # where it was called from


def evaluate_all(num_rows):
    accelerator = sharded()
    rows = torch.arange(7.0 * num_rows).reshape(num_rows, 7) / 100
    model = make_model("odd")
    with torch.no_grad():
        expected = model(rows)
    loader = torch.utils.data.DataLoader(rows, batch_size=2)
    model, loader = accelerator.prepare(model, loader)
    with torch.no_grad():
        found = [accelerator.gather_for_metrics(model(batch)) for batch in loader]
    return torch.cat(found), expected, [len(one) for one in found]


@pytest.mark.parametrize(("num_rows", "sizes"), [(5, [4, 1]), (7, [4, 3])])
def test_metrics_count_each_row_once_where_ranks_have_uneven_data(world, num_rows, sizes):
    for found, expected, gathered in world(2).run(evaluate_all, num_rows):
        torch.testing.assert_close(found, expected)
        assert gathered == sizes


def parts_of_shared_layers():
    """Return the bytes on this rank; an optimizer made later steps them."""
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(dp_shard_size=2, tp_size=2))
    model = make_model("shared-tied")
    model = accelerator.prepare(model)
    optimizer = accelerator.prepare(torch.optim.AdamW(model.parameters(), lr=0.1))
    before = whole(model)
    step(accelerator, model, optimizer, make_batches(1)[0])
    after = whole(model)
    assert not [name for name in before if torch.equal(before[name], after[name]) and "key.bias" not in name]
    assert model.head.weight is model.embed.weight
    return {name: one.to_local().nbytes for name, one in model.named_parameters()}


def test_the_first_rank_holds_the_parts_of_shared_layers_that_the_plan_reports(world):
    model = make_model("shared-tied")
    [stage] = planned_step(model, resolve_plan(model), MeshLayout(dp_shard=2, tp=2), Step())
    told = {one.name: one.num_local for unit in stage.units for one in unit.parameters}
    assert world(4).run(parts_of_shared_layers)[0] == told


def with_loss_in_parts():
    """Return losses and gradients where the head leaves each rank its part of the vocabulary, and where it does not."""
    found = []
    for style in ("colwise_loss_parallel", "colwise_gather_output"):
        reset_runtime(keep_process_group=True)
        accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(tp_size=2))
        model = make_model("shared")
        model.head = nn.Linear(12, 19, bias=False)
        plan = {**model.parallel_plan["tensor"], "head": style}
        model.parallel_plan = {"tensor": plan}
        model = accelerator.prepare(model)
        with loss_parallel():
            loss = nn.functional.cross_entropy(model(make_batches(1)[0]).flatten(0, 1), torch.arange(28) % 19)
            accelerator.backward(loss)
        gradients = [one.grad.full_tensor() for one in model.parameters()]
        found.append((loss.detach().full_tensor() if isinstance(loss, DTensor) else loss.detach(), gradients))
    return found


def test_a_loss_is_computed_from_parts_of_the_vocabulary(world):
    for in_parts, whole_ in world(2).run(with_loss_in_parts):
        torch.testing.assert_close(in_parts, whole_, rtol=1e-5, atol=1e-7)


def buffers_of_dtypes():
    accelerator = sharded()
    model = nn.Linear(3, 3)
    for dtype in (torch.int16, torch.uint16, torch.uint32, torch.float8_e4m3fn, torch.complex64, torch.bool):
        values = torch.full((2, 2), 1 - accelerator.process_index).to(dtype)
        model.register_buffer(str(dtype).rpartition(".")[2], values)
    return [buffer.to(torch.complex64) for buffer in accelerator.prepare(model).buffers()]


def test_buffers_of_every_dtype_take_the_values_of_rank_0(world):
    for buffers in world(3).run(buffers_of_dtypes):
        assert len(buffers) == 6
        assert all((buffer == 1).all() for buffer in buffers)


def warnings_of_hooks():
    accelerator = Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))
    model = torch.nn.Linear(2, 2)
    model.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        accelerator.prepare(model)
    return [str(one.message) for one in caught if "Hooks on" in str(one.message)]


def test_hooks_that_sharding_loses_are_named(world):
    first, second = world(2).run(warnings_of_hooks)
    assert len(first) == 1
    assert "Hooks on `weight` of the Linear are no longer called" in first[0]
    assert second == []
