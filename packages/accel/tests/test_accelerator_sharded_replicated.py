"""Parameters that are not sharded next to those that are, and what mixed precision casts then."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor

from accel import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig
from accel.utils import GradientAccumulationPlugin


class Gated(nn.Module):
    """Has a scalar, which is not always used, and a module to ignore."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(7, 7), nn.Tanh()) for _ in range(2))
        self.gate = nn.Linear(7, 7)
        self.scale = nn.Parameter(torch.tensor(2.5))
        self.register_buffer("shift", torch.linspace(-1, 1, 7))

    def forward(self, rows, use_scale=True):
        rows = rows + self.shift
        for block in self.blocks:
            rows = block(rows)
        rows = self.gate(rows)
        return rows * self.scale if use_scale else rows


def batches(number):
    return torch.randn(number, 3, 7, generator=torch.Generator().manual_seed(5))


def sharded(precision="no", accumulate=1, **plugin):
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, **{"ignored_modules": "gate", **plugin})
    return Accelerator(
        cpu=True, mixed_precision=precision, gradient_accumulation_steps=accumulate, fsdp_plugin=plugin
    )


def train(options, accumulate, num_items):
    accelerator = sharded(accumulate=accumulate)
    model = Gated()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **options)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    model, optimizer = accelerator.prepare(model, optimizer)
    rank, size = accelerator.process_index, accelerator.num_processes
    rows = batches(2 * accumulate * size)
    for index in range(2 * accumulate):
        with accelerator.accumulate(model):
            loss = model(rows[index * size + rank], use_scale=rank == 0).square().mean()
            accelerator.backward(loss, **({"num_items": 3} if num_items else {}))
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            scheduler.step()
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    return accelerator.get_state_dict(model), sizes


@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize(
    ("options", "accumulate", "num_items"),
    [({"foreach": True}, 1, False), ({"fused": True}, 2, False), ({"foreach": True}, 2, True)],
)
def test_parameters_that_are_not_sharded_train_as_in_one_process(
    world, options, accumulate, num_items, num_ranks
):
    model, rows = Gated(), batches(2 * accumulate * num_ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    for window in rows.chunk(2):
        for index, micro in enumerate(window):
            (model(micro, use_scale=index % num_ranks == 0).square().mean() / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    state, sizes = world(num_ranks).run(train, options, accumulate, num_items)[0]
    assert len(sizes) == 1
    for name, value in model.named_parameters():
        torch.testing.assert_close(state[name], value.detach(), rtol=0, atol=1e-6)


def train_in_16_bits(stored):
    accelerator = sharded("bf16")
    model = Gated().to(stored)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-4))
    module = accelerator.unwrap_model(model)
    before = module.scale.item()
    accelerator.backward(model(batches(1)[0]).square().mean())
    optimizer.step()
    return module.scale.dtype, module.gate.weight.dtype, module.scale.item() != before


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_parameters_that_are_not_sharded_have_master_weights_in_fp32(world, stored):
    for outcome in world(1).run(train_in_16_bits, stored):
        assert outcome == (torch.float32, torch.float32, True)


class Timed(nn.Module):
    """Computes its loss from targets and float timesteps."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList(nn.LayerNorm(7) for _ in range(2))
        self.head = nn.Linear(7, 7)
        self.register_buffer("shift", torch.linspace(-1, 1, 7))

    def forward(self, rows, steps, targets):
        rows = rows + self.shift + steps[:, None] / 1000
        for block in self.blocks:
            rows = block(rows)
        logits = self.head(rows)
        loss = nn.functional.mse_loss(logits, targets)
        return {"loss": loss, "logits": logits, "steps": steps, "targets": targets}


def outputs_under(plugin):
    accelerator = Accelerator(
        cpu=True,
        mixed_precision="bf16",
        fsdp_plugin=plugin and FullyShardedDataParallelPlugin(fsdp_version=2, **plugin),
    )
    rows = batches(2)
    return accelerator.prepare(Timed())(rows[0], torch.tensor([501.0, 999.0, 3.0]), rows[1])


def test_inputs_and_targets_reach_a_sharded_model_as_they_are(world):
    [plain], [outputs] = (
        world(1).run(outputs_under, None),
        world(1).run(outputs_under, {"cpu_offload": False}),
    )
    assert outputs["steps"].tolist() == [501.0, 999.0, 3.0]
    assert torch.equal(outputs["targets"], batches(2)[1])
    assert (outputs["loss"].dtype, outputs["logits"].dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(outputs["loss"], plain["loss"], rtol=2**-7, atol=0)


def output_under_policy(dtype):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=dtype)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, mixed_precision_policy=policy)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", fsdp_plugin=plugin)
    return accelerator.prepare(nn.Linear(7, 7))(batches(1)[0]).dtype


@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_outputs_have_the_dtype_of_a_policy_of_the_user(world, dtype):
    assert world(1).run(output_under_policy, dtype) == [dtype or torch.bfloat16]


class PartlyUsed(nn.Module):
    """Has parameters that only rank 0 uses, in the first micro-batch, and others that no rank uses."""

    def __init__(self, blocks=None):
        super().__init__()
        self.used, self.rare, self.never = (nn.Linear(4, 4) for _ in range(3))
        self.rare_scale, self.never_scale = (nn.Parameter(torch.tensor(2.5)) for _ in range(2))
        self.blocks = nn.ModuleList(blocks or ())

    def forward(self, rows, is_rare):
        rows = self.used(rows) + (self.rare(rows) * self.rare_scale if is_rare else 0)
        for block in self.blocks:
            rows = block(rows, is_rare)
        return rows


def gradients_of_partly_used(layout, when):
    accelerator = Accelerator(
        cpu=True,
        fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2, reduce_once=when == "once"),
        parallelism_config=ParallelismConfig(**layout) if layout else None,
        gradient_accumulation_plugin=GradientAccumulationPlugin(2, sync_each_batch=when == "each batch"),
    )
    model = accelerator.prepare(partly_used())
    for index in range(2):
        no_sync = accelerator.no_sync(model) if when == "no_sync" and index == 0 else nullcontext()
        with accelerator.accumulate(model), no_sync:
            is_rare = accelerator.process_index == 0 and index == 0
            accelerator.backward(model(torch.ones(2, 4), is_rare).square().mean())
        is_reduced = index == 1 or (when in ("window", "each batch") and "dp_replicate_size" not in layout)
        assert (model.used.weight.grad is not None) == is_reduced
    return {name: one.grad if one.grad is None else full(one.grad) for name, one in model.named_parameters()}


def full(gradient):
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def partly_used():
    torch.manual_seed(3)
    return PartlyUsed([PartlyUsed(), PartlyUsed()])


@pytest.mark.parametrize(
    ("num_ranks", "layout", "when"),
    [
        (3, {}, "window"),
        (3, {}, "no_sync"),
        (2, {}, "each batch"),
        (2, {}, "once"),
        (4, {"dp_replicate_size": 2, "dp_shard_size": 2}, "window"),
    ],
)
def test_parameters_that_no_rank_uses_have_no_gradient_as_in_one_process(world, num_ranks, layout, when):
    model = partly_used()
    for index in range(2 * num_ranks):
        (model(torch.ones(2, 4), index == 0).square().mean() / (2 * num_ranks)).backward()
    gradients = world(num_ranks).run(gradients_of_partly_used, layout, when)[0]
    assert {name for name, one in gradients.items() if one is None} == {
        name for name, one in model.named_parameters() if "never" in name
    }
    for name, one in model.named_parameters():
        if one.grad is not None:
            torch.testing.assert_close(gradients[name], one.grad, msg=name)
