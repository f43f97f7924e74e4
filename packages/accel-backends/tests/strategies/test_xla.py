"""Several processes on XLA devices, with a stand-in for the documented functions of `torch_xla` on CPU tensors."""

from __future__ import annotations

import dataclasses
import sys
import types

import pytest
import torch
import torch.distributed as dist

from accel_backends import Bundle, StrategyContext, Sync, select_precision, select_strategy
from accel_backends.plugins.fsdp import FullyShardedDataParallelPlugin
from accel_backends.strategies.fsdp2 import FullyShardedStrategy
from accel_backends.strategies.selection import STRATEGIES
from accel_backends.strategies.xla.strategy import XlaStrategy
from accel_state import GradientState, PartialState
from accel_state.devices import find_vendor
from accel_state.environment import patch_environment
from accel_state.errors import ConfigError
from accel_state.runtime import current_runtime
from accel_state.topology import Topology

pytestmark = pytest.mark.usefixtures("fresh_state")


class Documented(types.ModuleType):
    """A module that has the functions given and refuses all others."""

    def __init__(self, name, **functions):
        super().__init__(name)
        self.__dict__.update(functions)

    def __getattr__(self, name):
        raise AssertionError(f"`{self.__name__}.{name}` is not among the documented functions of torch_xla.")


class Collectives:
    """What torch_xla's collectives do, over gloo; counts what is reduced."""

    def __init__(self):
        self.reduced = []

    def all_reduce(self, reduce_type, inputs, scale=1.0, groups=None, pin_layout=True):
        assert reduce_type == "sum"
        self.reduced.append(len(inputs))
        for tensor in inputs:
            dist.all_reduce(tensor)
            tensor.mul_(scale)
        return inputs

    def broadcast_master_param(self, model):
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.detach(), 0)


@pytest.fixture
def one_process(monkeypatch):
    """A single process on what calls itself an XLA device."""
    PartialState(cpu=True)
    for name, module in modules_of(Collectives(), num_processes=1).items():
        monkeypatch.setitem(sys.modules, name, module)


def modules_of(collectives, *, num_processes):
    return {
        "torch_xla": Documented("torch_xla", device=lambda: torch.device("cpu")),
        "torch_xla.core": Documented("torch_xla.core"),
        "torch_xla.core.xla_model": Documented(
            "torch_xla.core.xla_model",
            all_reduce=collectives.all_reduce,
            broadcast_master_param=collectives.broadcast_master_param,
        ),
        "torch_xla.runtime": Documented(
            "torch_xla.runtime", is_spmd=lambda: False, process_count=lambda: num_processes
        ),
    }


def xla_runtime():
    return dataclasses.replace(current_runtime(), device=torch.device("xla"))


def set_up(strategy, **context):
    runtime = xla_runtime()
    precision = select_precision("no", device_backend=runtime.device_backend)
    strategy.setup(StrategyContext(runtime, precision, device_placement=False, **context))
    return strategy


def batches(num=8):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(4, 6, generator=generator, dtype=torch.float64) for _ in range(num)]


def make(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(body):
    """Train on this rank's batches in windows of two; ``body(strategy, model, optimizer)`` ends each window."""
    collectives = Collectives()
    sys.modules.update(modules_of(collectives, num_processes=dist.get_world_size()))
    try:
        strategy = set_up(XlaStrategy())
        rank, gradient = current_runtime().topology.rank, strategy.context.gradient
        made, made_optimizer = make(
            rank
        )  # the processes begin with different weights, and continue with those of rank 0
        prepared = strategy.prepare(Bundle(models=[made], optimizers=[made_optimizer]))
        model, optimizer = prepared.models[0], prepared.optimizers[0]
        seen, synced = [], []
        for index, rows in enumerate(batches()[rank::2]):
            is_last = index % 2 == 1
            gradient._set_sync_gradients(is_last)
            with strategy.gradient_sync(model, sync=Sync.NOW if is_last else Sync.LATER):
                strategy.backward(model(rows).square().mean(), num_steps=2)
            synced.append(gradient.is_xla_gradients_synced)
            if is_last:
                seen.append(body(strategy, model, optimizer))
            optimizer.step()
            synced.append(gradient.is_xla_gradients_synced)
            optimizer.zero_grad()
        return {
            "seen": seen,
            "weights": [one.detach().clone() for one in model.parameters()],
            "num_reductions": len(collectives.reduced),
            "synced": synced[2:4],
        }
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torch_xla"]:
            del sys.modules[name]


def step_alone(strategy, model, optimizer):
    return None


def clip(strategy, model, optimizer):
    return float(strategy.clip_grad_norm(model.parameters(), 0.05))


def clip_values(strategy, model, optimizer):
    strategy.clip_grad_value(model.parameters(), 0.005)
    return max(float(one.grad.abs().max()) for one in model.parameters())


def scale_then_clip(strategy, model, optimizer):
    strategy.scale_gradients([model], 0.5)
    return float(strategy.clip_grad_norm(model.parameters(), 0.05))


def step_by_closure(strategy, model, optimizer):
    """Step once more, with gradients that a closure computes."""
    rows = batches()[current_runtime().topology.rank]

    def closure():
        optimizer.optimizer.zero_grad()
        loss = model(rows).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    return None


def train_alone(body):
    """Do the same in plain PyTorch with the batches of both."""
    model, optimizer = make(0)
    seen = []
    rows = batches()
    for first in range(0, 8, 4):
        (sum(model(one).square().mean() for one in rows[first : first + 4]) / 4).backward()
        if body is clip:
            seen.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)))
        elif body is clip_values:
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.005)
            seen.append(max(float(one.grad.abs().max()) for one in model.parameters()))
        elif body is scale_then_clip:
            for one in model.parameters():
                one.grad.mul_(0.5)
            seen.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)))
        elif body is step_by_closure:
            optimizer.zero_grad()
            (sum(model(one).square().mean() for one in rows[:2]) / 2).backward()
            optimizer.step()
            seen.append(None)
        else:
            seen.append(None)
        optimizer.step()
        optimizer.zero_grad()
    return {"seen": seen, "weights": [one.detach() for one in model.parameters()]}


@pytest.mark.parametrize("body", [step_alone, clip, clip_values, scale_then_clip])
def test_two_processes_train_as_one_and_average_once_per_window(world, body):
    expected = train_alone(body)
    for found in world(2).run(train, body):
        assert found["seen"] == expected["seen"] or found["seen"] == pytest.approx(expected["seen"])
        torch.testing.assert_close(found["weights"], expected["weights"], rtol=0, atol=1e-12)
        assert found["num_reductions"] == 2
        assert found["synced"] == [False, True]


def test_gradients_of_a_closure_are_averaged_too(world):
    expected = train_alone(step_by_closure)
    for found in world(2).run(train, step_by_closure):
        torch.testing.assert_close(found["weights"], expected["weights"], rtol=0, atol=1e-12)


def test_the_device_decides_by_default():
    two = Topology(rank=0, world_size=2)
    assert type(select_strategy(topology=two, vendor=find_vendor("xla"))) is XlaStrategy
    assert type(select_strategy(topology=Topology(), vendor=find_vendor("xla"))) is XlaStrategy


@pytest.mark.parametrize("name", ["ddp", "single", "fsdp2", "pipeline"])
def test_other_strategies_are_refused_on_xla_devices(name):
    with pytest.raises(ConfigError, match=f"`{name}` does not train on `xla` devices.*strategy `xla`"):
        select_strategy(name, topology=Topology(), vendor=find_vendor("xla"))


def test_a_strategy_of_another_package_for_these_devices_is_accepted():
    class Mine(XlaStrategy):
        name = "mine"

    STRATEGIES.register("mine", Mine)
    try:
        assert type(select_strategy("mine", topology=Topology(), vendor=find_vendor("xla"))) is Mine
    finally:
        STRATEGIES.unregister("mine")


def test_devices_that_are_not_xla_are_refused():
    with pytest.raises(
        ConfigError,
        match="`xla` does not train on `cpu` devices. It trains on: xla. .*`torch-xla` is not installed",
    ):
        select_strategy("xla", topology=Topology())


def test_the_plugin_chooses_the_strategy():
    assert FullyShardedDataParallelPlugin(xla_fsdp_v2=True).strategy == "xla"
    assert isinstance(
        select_strategy(topology=Topology(), plugin=FullyShardedDataParallelPlugin(fsdp_version=2)),
        FullyShardedStrategy,
    )


def refuse_several_processes():
    sys.modules.update(modules_of(Collectives(), num_processes=2))
    try:
        with pytest.raises(
            ConfigError, match="`xla_fsdp_v2` is not possible on XLA devices with 2 processes"
        ):
            set_up(XlaStrategy(), plugin=FullyShardedDataParallelPlugin(xla_fsdp_v2=True))
        with pytest.raises(ConfigError, match="`join_uneven_inputs` is not possible"):
            set_up(XlaStrategy()).join_uneven_inputs([])
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torch_xla"]:
            del sys.modules[name]


def test_what_only_one_process_can_do_is_refused_with_several(world):
    world(2).run(refuse_several_processes)


def test_an_optimizer_made_before_follows_parameters_with_its_state(one_process):
    strategy = set_up(XlaStrategy())
    model, optimizer = make(0)
    model(batches()[0]).sum().backward()
    optimizer.step()
    old = model[0].weight
    before = optimizer.state[old]["exp_avg"].clone()
    new = torch.nn.Parameter(old.detach().clone())
    strategy.replaced.record([(old, new)])
    strategy.prepare_optimizer(optimizer)
    assert optimizer.param_groups[0]["params"][0] is new
    torch.testing.assert_close(optimizer.state[new]["exp_avg"], before, rtol=0, atol=0)
    assert old not in optimizer.state


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"xla_fsdp_grad_ckpt": True},
            "`xla_fsdp_grad_ckpt` would have no effect without `xla_fsdp_v2=True`",
        ),
        ({"xla_fsdp_v2": True, "cpu_offload": True}, "`cpu_offload` would have no effect with `xla_fsdp_v2`"),
        (
            {"xla_fsdp_v2": True, "sharding_strategy": "NO_SHARD"},
            "`sharding_strategy` would have",
        ),
        (
            {"xla_fsdp_v2": True, "mixed_precision_policy": "bf16"},
            "`mixed_precision_policy` would have no effect",
        ),
        (
            {"xla_fsdp_v2": True, "state_dict_type": "SHARDED_STATE_DICT"},
            "`state_dict_type` would have no effect",
        ),
        ({"xla_fsdp_v2": True, "activation_checkpointing": True}, "`activation_checkpointing` would have no"),
        ({"xla_fsdp_v2": True, "xla_fsdp_settings": {"compute_dtype": "bf16"}}, "`compute_dtype`, which"),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_fields_without_an_effect_are_refused(fields, message, version):
    if version == 2 and "sharding_strategy" in fields:
        fields, message = (
            {**fields, "sharding_strategy": "SHARD_GRAD_OP"},
            "`reshard_after_forward` would have",
        )
    with pytest.raises(ConfigError, match=message):
        FullyShardedDataParallelPlugin(fsdp_version=version, **fields)


def test_floats_that_would_be_stored_otherwise_are_refused(one_process):
    with (
        patch_environment(ACCELERATE_DOWNCAST_BF16="true", XLA_DOWNCAST_BF16="0"),
        pytest.raises(ConfigError, match="`downcast_bf16` has no effect here"),
    ):
        runtime = xla_runtime()
        precision = select_precision("bf16", device_backend=runtime.device_backend)
        XlaStrategy().setup(StrategyContext(runtime, precision))


def test_the_state_reports_whether_gradients_are_averaged():
    assert GradientState().is_xla_gradients_synced is False
