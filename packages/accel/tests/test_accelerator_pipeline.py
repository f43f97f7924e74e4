"""A pipeline trains a model as one process would that accumulates the same micro-batches."""

from collections import Counter
from math import prod

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from accel import Accelerator, ParallelismConfig
from accel.utils import FullyShardedDataParallelPlugin, GradScalerKwargs
from accel_backends.pipeline.chunks import in_chunks
from accel_state import PipelineParallelConfig
from accel_state.errors import CheckpointError, ConfigError, DistributedOperationException, StateError
from accel_state.mesh_layout import DATA_AXES
from accel_state.runtime import reset_runtime
from accel.planning.collectives import counted_collectives
from tools.harness.device import device_type, on_cpu
from tools.harness.models import make_batches, make_model

NUM_ROWS = (8, 8, 5, 1)  # the last batches are short, and a batch of one has one micro-batch


def loss_of(model, rows):
    return model(rows).square().mean()


def batches():
    rows = torch.cat(list(make_batches(12))).to(device_type())
    ends = torch.tensor(NUM_ROWS).cumsum(0).tolist()
    return [rows[end - number : end] for end, number in zip(ends, NUM_ROWS, strict=True)]


def make_optimizer(model):
    return torch.optim.AdamW((one for one in model.parameters() if one.requires_grad), lr=0.01)


def make_accelerator(
    *,
    num_stages=2,
    schedule="1f1b",
    num_micro_batches=4,
    split_points="auto",
    stages_per_rank=None,
    sizes=None,
    **options,
):
    handler = PipelineParallelConfig(schedule, num_micro_batches, split_points, stages_per_rank)
    config = ParallelismConfig(pp_size=num_stages, pp_handler=handler, **(sizes or {}))
    return Accelerator(cpu=on_cpu(), parallelism_config=config, **options)


def train_in_stages(kind, *, clip=None, accumulate=1, **options):
    accelerator = make_accelerator(gradient_accumulation_steps=accumulate, **options)
    model = make_model(kind)
    model, optimizer = accelerator.prepare(model, make_optimizer(model))
    losses, norms, gradients = [], [], []
    for rows in batches():
        with accelerator.accumulate(model):
            losses.append(accelerator.forward_backward(model, rows, loss_of).item())
            if clip is not None and accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(model.parameters(), clip).item())
            gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        losses.append(accelerator.forward_backward(model, batches()[0], loss_of).item())
    held = sum(one.untyped_storage().nbytes() for one in model.parameters())
    return losses, norms, gradients, accelerator.get_state_dict(model), held


def train_alone(kind, *, num_micro_batches=4, clip=None, accumulate=1):
    model = make_model(kind).to(device_type())
    optimizer = make_optimizer(model)
    losses, norms, gradients = [], [], []
    for number, rows in enumerate(batches(), start=1):
        total = 0.0
        for part in in_chunks(rows, len(rows), num_micro_batches):
            loss = loss_of(model, part)
            (loss * (len(part) / len(rows)) / accumulate).backward()
            total += loss.double().item() * len(part) / len(rows)
        losses.append(total)
        if number % accumulate == 0 and clip is not None:
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        losses.append(loss_of(model, batches()[0]).item())
    return losses, norms, gradients, model.state_dict(), sum(one.nbytes for one in model.parameters())


ROWS = [
    # model, processes, settings, tolerance: 0 where every gradient is computed in one place
    ("odd", 2, {"schedule": "1f1b"}, 0.0),
    ("odd", 2, {"schedule": "gpipe", "accumulate": 2}, 0.0),
    ("odd", 3, {"schedule": "1f1b", "num_micro_batches": 2, "clip": 0.05}, 1e-5),
    ("odd", 2, {"schedule": "interleaved_1f1b"}, 0.0),
    ("odd", 2, {"schedule": "zero_bubble", "accumulate": 2}, 0.0),
    ("tied", 2, {"schedule": "interleaved_1f1b"}, 1e-6),
    ("tied", 2, {"schedule": "1f1b", "accumulate": 2}, 1e-6),
    ("adapted", 2, {"schedule": "1f1b"}, 1e-6),
]


@pytest.mark.parametrize(("kind", "num_processes", "settings", "tolerance"), ROWS)
def test_stages_train_like_one_process(world, device, kind, num_processes, settings, tolerance):
    tolerance = tolerance if on_cpu() else 1e-5
    alone = {name: value for name, value in settings.items() if name != "schedule"}
    losses, norms, gradients, state, num_bytes = world(1).run(train_alone, kind, **alone)[0]
    each = world(num_processes).run(train_in_stages, kind, num_stages=num_processes, **settings)
    for own_losses, own_norms, own_gradients, own_state, held in each:
        assert own_losses == pytest.approx(losses, rel=1e-6 if tolerance == 0 else 1e-4)
        assert own_norms == each[0][1] == pytest.approx(norms, rel=1e-6)
        assert list(own_state) == (list(state) if own_state is each[0][3] else [])
        for name, value in own_state.items():
            torch.testing.assert_close(value, state[name], rtol=0, atol=tolerance, msg=name)
        for found, expected in zip(own_gradients, gradients, strict=True):
            assert found
            for name, value in found.items():
                torch.testing.assert_close(value, expected[name], rtol=0, atol=tolerance, msg=name)
        assert held < num_bytes
    every = {name for _, _, own, _, _ in each for name in own[0]}
    assert every == set(gradients[0])


EVEN = tuple(rows for rows in torch.cat(list(make_batches(7))).split((8, 8, 6, 4, 2)))


def whole_gradients(model):
    return {
        name: (one.grad.full_tensor() if isinstance(one.grad, DTensor) else one.grad).clone()
        for name, one in model.named_parameters()
        if one.grad is not None
    }


def sgd(model):
    """Return an optimizer that does not make more of differences in rounding, as Adam does of small gradients."""
    return torch.optim.SGD((one for one in model.parameters() if one.requires_grad), lr=0.1, momentum=0.9)


def train_in_sharded_stages(kind, sizes, schedule, is_checkpointed, stages_per_rank=None):
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, activation_checkpointing=is_checkpointed)
    accelerator = make_accelerator(
        sizes=sizes,
        schedule=schedule,
        stages_per_rank=stages_per_rank,
        fsdp_plugin=plugin,
        gradient_accumulation_steps=2,
    )
    layout = accelerator.parallelism_config.layout
    own = layout.index(accelerator.process_index, *DATA_AXES)
    model = make_model(kind)
    model, optimizer = accelerator.prepare(model, sgd(model))
    losses, norms, gradients = [], [], []
    for rows in EVEN:
        with accelerator.accumulate(model):
            rows = rows[own :: layout.num_data_ranks]
            losses.append(accelerator.forward_backward(model, rows, loss_of).item())
            if accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(model.parameters(), 0.05).item())
            gradients.append(whole_gradients(model))
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        losses.append(
            accelerator.forward_backward(model, EVEN[0][own :: layout.num_data_ranks], loss_of).item()
        )
    return losses, norms, gradients, accelerator.get_state_dict(model)


def train_alone_on(kind):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = make_model(kind)
    model, optimizer = accelerator.prepare(model, sgd(model))
    losses, norms, gradients = [], [], []
    for rows in EVEN:
        with accelerator.accumulate(model):
            losses.append(accelerator.forward_backward(model, rows, loss_of).item())
            if accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(model.parameters(), 0.05).item())
            gradients.append(whole_gradients(model))
            optimizer.step()
            optimizer.zero_grad()
    losses.append(loss_of(model, EVEN[0]).item())
    return losses, norms, gradients, model.state_dict()


SHARDED = [
    # model, ranks of a stage, schedule, whether activations are computed again
    ("tied", {"dp_shard_size": 2}, "1f1b", False),
    ("scaled", {"dp_shard_size": 2}, "zero_bubble", True),
    ("adapted", {"dp_replicate_size": 2}, "1f1b", False),
    ("shared-tied", {"tp_size": 2}, "zero_bubble", False),
    pytest.param("shared-tied", {"tp_size": 2, "dp_shard_size": 2}, "1f1b", False, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "sizes", "schedule", "is_checkpointed"), SHARDED)
def test_sharded_stages_train_like_one_process(world, kind, sizes, schedule, is_checkpointed):
    check_sharded_stages(world, kind, sizes, schedule, is_checkpointed)


def test_zero_bubble_takes_several_sharded_stages_of_a_rank(world):
    check_sharded_stages(world, "scaled", {"dp_shard_size": 2}, "zero_bubble", False, 2)


def check_sharded_stages(world, kind, sizes, *settings):
    losses, norms, gradients, state = world(1).run(train_alone_on, kind)[0]
    num_processes = 2 * prod(sizes.values())
    each = world(num_processes).run(train_in_sharded_stages, kind, sizes, *settings)
    assert torch.tensor([own[0] for own in each]).mean(0).tolist() == pytest.approx(losses, rel=1e-5)
    for _, own_norms, own_gradients, _ in each:
        assert own_norms == each[0][1] == pytest.approx(norms, rel=1e-5)
        for found, expected in zip(own_gradients, gradients, strict=True):
            assert found
            for name, value in found.items():
                torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)
    assert {name for own in each for name in own[2][0]} == set(gradients[0])
    assert list(each[0][3]) == list(state)
    for name, value in each[0][3].items():
        torch.testing.assert_close(value, state[name], rtol=0, atol=1e-5, msg=name)


def add_up_by_hand():
    """Return gradients of two batches without `accumulate` and without a step between, of stages and of a copy."""
    accelerator = make_accelerator()
    model, alone = make_model("tied"), make_model("tied")
    model, _ = accelerator.prepare(model, make_optimizer(model))
    for rows in batches()[:2]:
        accelerator.forward_backward(model, rows, loss_of)
        loss_of(alone, rows).backward()
    return [{n: p.grad for n, p in one.named_parameters() if p.grad is not None} for one in (model, alone)]


def test_gradients_of_several_calls_add_up_also_those_of_a_shared_weight(world):
    for found, expected in world(2).run(add_up_by_hand):
        assert found
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)


def collectives_of_a_step():
    accelerator = make_accelerator()
    model = accelerator.prepare(make_model("odd"))
    accelerator.forward_backward(model, batches()[0], loss_of)
    with counted_collectives() as counted:
        accelerator.forward_backward(model, batches()[0], loss_of)
    return Counter(kind for kind, *_ in counted.elements())


def test_a_step_agrees_twice_and_reports_the_loss_on_the_way(world):
    sent = {"send": 4, "receive": 4}  # of each micro-batch, forward or back
    assert world(2).run(collectives_of_a_step) == [{"all_gather": 2, **sent}] * 2


def save_from_stages(folder, form="SHARDED_STATE_DICT"):
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type=form)
    accelerator = make_accelerator(fsdp_plugin=plugin)
    model = make_model("tied")
    model, optimizer = accelerator.prepare(model, make_optimizer(model))
    accelerator.forward_backward(model, batches()[0], loss_of)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.save_state(folder)
    accelerator.forward_backward(model, batches()[1], loss_of)
    optimizer.step()
    after = accelerator.get_state_dict(model)
    accelerator.load_state(folder)
    optimizer.zero_grad()
    accelerator.forward_backward(model, batches()[1], loss_of)
    optimizer.step()
    again = accelerator.get_state_dict(model)
    return after, all(again[name].equal(after[name]) for name in after)


def load_in_one_process(folder):
    accelerator = Accelerator(cpu=True)
    model = make_model("tied", seed=8)
    model, optimizer = accelerator.prepare(model, make_optimizer(model))
    accelerator.load_state(folder)
    for part in in_chunks(batches()[1], 8, 4):
        accelerator.backward(loss_of(model, part) / 4)
    optimizer.step()
    return accelerator.get_state_dict(model)


def test_a_checkpoint_of_stages_resumes_in_stages_and_in_one_process(world, tmp_path):
    (after, goes_on), (nothing, _) = world(2).run(save_from_stages, str(tmp_path / "saved"))
    assert goes_on
    assert nothing == {}
    (alone,) = world(1).run(load_in_one_process, str(tmp_path / "saved"))
    for name, value in alone.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=1e-6, msg=name)


def resume_before_the_first_batch(folder, num_with_values):
    """Continue as `save_from_stages` does, with a model that few ranks have values of, or none."""
    accelerator = make_accelerator()
    has_values = accelerator.process_index < num_with_values
    with torch.device("cpu" if has_values else "meta"):
        model = make_model("tied", seed=8)
        model, optimizer = accelerator.prepare(model, make_optimizer(model))
    accelerator.load_state(folder)
    accelerator.forward_backward(model, batches()[1], loss_of)
    optimizer.step()
    return accelerator.get_state_dict(model)


@pytest.mark.parametrize("form", ["SHARDED_STATE_DICT", "FULL_STATE_DICT"])
def test_a_model_without_values_is_loaded_before_the_first_batch(world, tmp_path, form):
    folder = str(tmp_path / "saved")
    (after, _), _ = world(2).run(save_from_stages, folder, form)
    for num_with_values in (2, 1, 0):
        state, _ = world(2).run(resume_before_the_first_batch, folder, num_with_values)
        assert list(state) == list(after)
        for name, value in after.items():
            assert state[name].equal(value), (name, num_with_values)


def load_another_model(folder):
    """Return what is said when a model on the meta device has another shape, another name, and one name more."""
    said = []
    for change in ("shape", "name", "more"):
        accelerator = make_accelerator()
        with torch.device("meta"):
            model = make_model("tied", seed=8)
            name, value = next(iter(model.named_parameters()))
            owner = model.get_submodule(name.rpartition(".")[0])
            if change == "shape":
                owner.register_parameter(name.rpartition(".")[2], nn.Parameter(value[:1]))
            else:
                owner.register_parameter("another", nn.Parameter(value[:1]))
            if change == "name":
                owner.register_parameter(name.rpartition(".")[2], None)
        accelerator.prepare(model, make_optimizer(model))
        with pytest.raises(CheckpointError) as caught:
            accelerator.load_state(folder)
        said.append(str(caught.value))
        accelerator.free_memory()
    return said


def test_a_state_of_another_model_is_refused_before_the_first_batch(world, tmp_path):
    folder = str(tmp_path / "saved")
    world(2).run(save_from_stages, folder, "FULL_STATE_DICT")
    for shape, name, more in world(2).run(load_another_model, folder):
        assert "shape" in shape
        assert "another" in name
        assert "another" in more


class Named(nn.Module):
    """Takes a name for each row, and notes each run of its code."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.names = []

    def forward(self, rows, names):
        self.names.append((len(rows), tuple(names)))
        for block in self.blocks:
            rows = block(rows)
        return rows


def runs_of_named_rows():
    accelerator = make_accelerator(num_micro_batches=2)
    model = accelerator.prepare(Named())
    counts = []
    for step in range(3):
        batch = {"rows": torch.ones(4, 4), "names": [f"{step}-{row}" for row in range(4)], "step": step}
        accelerator.forward_backward(
            model, batch, lambda model, part: model(part["rows"], part["names"]).square().mean()
        )
        counts.append(len(model.names))
    return counts, model.names


def test_names_are_split_with_their_rows_and_each_micro_batch_is_one_run(world):
    for counts, names in world(2).run(runs_of_named_rows):
        assert counts == [2, 4, 6]
        assert names[-2:] == [(2, ("2-0", "2-1")), (2, ("2-2", "2-3"))]


class Lopsided(nn.Module):
    """Stages of about the same size would begin inside of ``front``."""

    def __init__(self):
        super().__init__()
        layers = [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(8)]
        self.front = nn.Sequential(*layers)
        self.head = nn.Linear(4, 8)

    def forward(self, rows):
        return self.head(self.front(rows))


def trained_here():
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, parallel_plan={"units": ["front"]})
    accelerator = make_accelerator(fsdp_plugin=plugin)
    model = accelerator.prepare(Lopsided())
    accelerator.forward_backward(model, torch.ones(4, 4), loss_of)
    return [name for name, one in model.named_parameters() if one.grad is not None]


def test_no_stage_begins_inside_of_a_unit_that_the_user_names(world):
    first, second = world(2).run(trained_here)
    assert first == [f"front.{number}.0.{kind}" for number in range(8) for kind in ("weight", "bias")]
    assert second == ["head.weight", "head.bias"]


def use_wrongly():
    accelerator = make_accelerator()
    model = make_model("odd")
    model = accelerator.prepare(model)
    rows = batches()[0]
    with pytest.raises(
        StateError, match=r"cannot be called by itself.*forward_backward\(model, batch, loss_fn\)"
    ):
        model(rows)
    with pytest.raises(StateError, match="`backward` cannot train a pipeline.*forward_backward"):
        accelerator.backward(torch.ones((), requires_grad=True))
    is_last = accelerator.is_last_process
    with pytest.raises(ConfigError if is_last else DistributedOperationException, match=r"of shape \(2, 1\)"):
        accelerator.forward_backward(model, rows, lambda model, part: model(part))
    with pytest.raises(ConfigError, match=r"Linear to prepare|Linear was not prepared"):
        accelerator.forward_backward(torch.nn.Linear(1, 1), rows, loss_of)
    with pytest.raises(ConfigError, match="names 2 modules, but 2 stages need 1"):
        accelerator.parallelism_config.pp_handler.split_points = ["blocks.0", "blocks.1"]
        accelerator.prepare(make_model("odd"))
    return accelerator.forward_backward(model, rows, loss_of).item()


def test_wrong_use_is_refused_with_the_right_one_and_does_no_harm(world):
    first, second = world(2).run(use_wrongly)
    assert first == second


def train_in_half(num_stages, precision):
    """Train in 16 bits with one micro-batch; one stage is a run without a pipeline. fp16 overflows at first."""
    options = {"mixed_precision": precision, "kwargs_handlers": [GradScalerKwargs(init_scale=2.0**38)]}
    if num_stages == 1:
        accelerator = Accelerator(cpu=True, **options)
    else:
        accelerator = make_accelerator(**options, num_micro_batches=1)
    model = make_model("odd")
    model, optimizer = accelerator.prepare(model, make_optimizer(model))
    losses, skipped = [], []
    for _ in range(10):
        for rows in batches():
            losses.append(accelerator.forward_backward(model, rows, loss_of).item())
            optimizer.step()
            skipped.append(accelerator.optimizer_step_was_skipped)
            optimizer.zero_grad()
    with torch.no_grad():
        losses.append(accelerator.forward_backward(model, batches()[0], loss_of).item())
    return losses, skipped, accelerator.get_state_dict(model)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_call_that_trains_in_stages_trains_without_them_too_in_half_precision(world, precision):
    ((losses, skipped, state),) = world(1).run(train_in_half, 1, precision)
    (first, skipped_by_first, own_state), (second, skipped_by_second, _) = world(2).run(
        train_in_half, 2, precision
    )
    assert first == second == losses
    assert skipped_by_first == skipped_by_second == skipped
    assert any(skipped) == (precision == "fp16")
    assert not all(skipped)
    assert all(own_state[name].equal(value) for name, value in state.items())


def valid(rows):
    """Return which rows count: more of some micro-batches than of others."""
    return (rows[:, 0] > -0.5).double()


def mean_of_valid(model, rows):
    return (model(rows).square().squeeze(1) * valid(rows)).sum() / valid(rows).sum().clamp(min=1)


def loss_and_outputs(model, part):
    outputs = model(part)
    return outputs.square().mean(), {"outputs": outputs, "is_large": outputs.squeeze(1) > 0.1}


def evaluate(num_stages, sizes=None):
    """Return what this rank gets of a batch of 7 rows before and after it trains, and the full model's."""
    options = (
        {} if num_stages == 1 else {"parallelism_config": ParallelismConfig(pp_size=num_stages, **sizes)}
    )
    accelerator = Accelerator(cpu=True, **options)
    model = accelerator.prepare(make_model("odd"))
    found = accelerator.evaluate(model, EVEN[0][:7], loss_and_outputs)
    accelerator.forward_backward(model, EVEN[0], loss_of)
    again = accelerator.evaluate(model, EVEN[0][:7], loss_and_outputs)
    if num_stages > 1:
        error = ConfigError if accelerator.is_last_process else (ConfigError, DistributedOperationException)
        with pytest.raises(error, match="must return a tuple of the loss and the outputs, got a Tensor"):
            accelerator.evaluate(model, EVEN[0][:7], loss_of)
    return found, again


@pytest.mark.parametrize(("num_stages", "sizes"), [(2, {}), (3, {}), (2, {"dp_shard_size": 2})])
def test_evaluation_returns_the_loss_and_the_outputs_of_the_batch_on_every_stage(world, num_stages, sizes):
    ((expected, _),) = world(1).run(evaluate, 1)
    for each in world(num_stages * prod(sizes.values())).run(evaluate, num_stages, sizes):
        for loss, outputs in each:
            torch.testing.assert_close(loss, expected[0])
            torch.testing.assert_close(outputs, expected[1])
            assert not outputs["outputs"].requires_grad


def weighted_steps(num_stages, sizes=None):
    accelerator = make_accelerator(num_stages=num_stages, sizes=sizes, gradient_accumulation_steps=2)
    layout = accelerator.parallelism_config.layout
    own = layout.index(accelerator.process_index, *DATA_AXES)
    model = make_model("odd", dtype=torch.float64)
    model, optimizer = accelerator.prepare(model, sgd(model))
    for rows in EVEN[:4]:
        with accelerator.accumulate(model):
            rows = rows.double()[own :: layout.num_data_ranks]
            accelerator.forward_backward(model, rows, mean_of_valid, lambda part: valid(part).sum())
            optimizer.step()
            optimizer.zero_grad()
    return accelerator.get_state_dict(model)


def weighted_steps_by_hand():
    model = make_model("odd", dtype=torch.float64)
    optimizer = sgd(model)
    for number in (0, 2):
        mean_of_valid(model, torch.cat(EVEN[number : number + 2]).double()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def test_items_count_once_in_whatever_micro_batch_they_are(world):
    (expected,) = world(1).run(weighted_steps_by_hand)
    for found in (
        world(2).run(weighted_steps, 2)[0],
        world(4).run(weighted_steps, 2, {"dp_shard_size": 2})[0],
    ):
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12, msg=name)


def train_from_files(folder, num_stages, backend):
    """Train a model that no rank has made: each reads its stage from files, and compiles its blocks."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, load_weights_from=folder)
    accelerator = make_accelerator(num_stages=num_stages, fsdp_plugin=plugin, dynamo_backend=backend)
    with torch.device("meta"):
        model = make_model("tied")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    losses = []
    for rows in batches()[:3]:
        losses.append(accelerator.forward_backward(model, rows, loss_of).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, sum(one.untyped_storage().nbytes() for one in model.parameters())


def train_from_values(folder):
    model = make_model("tied")
    Accelerator(cpu=True).save_model(model, folder)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for rows in batches()[:3]:
        loss = loss_of(model, rows)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses, sum(one.nbytes for one in model.parameters())


def test_each_rank_reads_its_stage_of_a_model_on_the_meta_device_and_compiles_its_blocks(world, tmp_path):
    folder = str(tmp_path / "weights")
    ((losses, num_bytes),) = world(1).run(train_from_values, folder)
    for own_losses, held in world(2).run(train_from_files, folder, 2, "eager"):
        assert own_losses == pytest.approx(losses, rel=1e-5)
        assert held < num_bytes


def fail_in_the_second_batch():
    accelerator = make_accelerator()
    model = make_model("tied")
    model, _ = accelerator.prepare(model, make_optimizer(model))
    accelerator.forward_backward(model, batches()[0], loss_of)
    before = model.embed.weight.grad.clone()
    with pytest.raises((ConfigError, DistributedOperationException)) as caught:
        accelerator.forward_backward(model, batches()[1], lambda model, rows: model(rows))
    return caught.value.__notes__, model.embed.weight.grad.equal(before)


def test_gradients_of_earlier_batches_are_kept_when_a_batch_fails(world):
    for notes, is_kept in world(2).run(fail_in_the_second_batch):
        assert is_kept
        assert "Gradients of earlier batches are kept" in notes[-1]


def fail_in_the_last_micro_batch(sizes, schedule):
    """Return the gradients of a batch after another one failed, when it had reduced no gradients, and without that."""
    gradients = []
    for fails in (True, False):
        reset_runtime(keep_process_group=True)
        accelerator = make_accelerator(sizes=sizes, schedule=schedule)
        model = accelerator.prepare(make_model("odd"))
        num_calls = []

        def failing(model, part, num_calls=num_calls):
            num_calls.append(None)
            if len(num_calls) == 4:
                raise ArithmeticError("no")
            return loss_of(model, part)

        if fails:
            with pytest.raises((ArithmeticError, DistributedOperationException)):
                accelerator.forward_backward(model, EVEN[1], failing)
            assert not any(one.grad is not None for one in model.parameters())
        accelerator.forward_backward(model, EVEN[0], loss_of)
        gradients.append(whole_gradients(model))
    return gradients


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_sharded_stages_forget_the_gradients_of_a_batch_that_failed(world, schedule):
    for found, expected in world(4).run(fail_in_the_last_micro_batch, {"dp_shard_size": 2}, schedule):
        assert found
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
