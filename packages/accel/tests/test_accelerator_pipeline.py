"""A pipeline trains a model as one process would that accumulates the same micro-batches."""

import pytest
import torch

from accel import Accelerator, ParallelismConfig
from accel_backends.pipelining.chunks import in_chunks
from accel_backends.testing.models import make_batches, make_model
from accel_state import PipelineParallelConfig
from accel_state.errors import ConfigError, DistributedOperationException, StateError

NUM_ROWS = (8, 8, 5, 1)  # the last batches are short, and a batch of one has one micro-batch


def loss_of(model, rows):
    return model(rows).square().mean()


def batches():
    rows = torch.cat(list(make_batches(12)))
    ends = torch.tensor(NUM_ROWS).cumsum(0).tolist()
    return [rows[end - number : end] for end, number in zip(ends, NUM_ROWS, strict=True)]


def make_optimizer(model):
    return torch.optim.AdamW((one for one in model.parameters() if one.requires_grad), lr=0.01)


def make_accelerator(*, num_stages=2, schedule="1f1b", num_micro_batches=4, split_points="auto", **options):
    handler = PipelineParallelConfig(schedule, num_micro_batches, split_points)
    config = ParallelismConfig(pp_size=num_stages, pp_handler=handler)
    return Accelerator(cpu=True, parallelism_config=config, **options)


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
    model = make_model(kind)
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
    ("tied", 2, {"schedule": "1f1b"}, 1e-6),
    ("adapted", 2, {"schedule": "1f1b"}, 1e-6),
]


@pytest.mark.parametrize(("kind", "num_processes", "settings", "tolerance"), ROWS)
def test_stages_train_like_one_process(world, kind, num_processes, settings, tolerance):
    alone = {name: value for name, value in settings.items() if name != "schedule"}
    losses, norms, gradients, state, num_bytes = world(1).run(train_alone, kind, **alone)[0]
    each = world(num_processes).run(train_in_stages, kind, num_stages=num_processes, **settings)
    for own_losses, own_norms, own_gradients, own_state, held in each:
        assert own_losses == pytest.approx(losses, rel=1e-6 if tolerance == 0 else 1e-4)
        assert own_norms == each[0][1] == pytest.approx(norms, rel=1e-4)
        assert list(own_state) == list(state)
        for name, value in state.items():
            torch.testing.assert_close(own_state[name], value, rtol=0, atol=tolerance, msg=name)
        for found, expected in zip(own_gradients, gradients, strict=True):
            assert found
            for name, value in found.items():
                torch.testing.assert_close(value, expected[name], rtol=0, atol=tolerance, msg=name)
        assert held < num_bytes
    every = {name for _, _, own, _, _ in each for name in own[0]}
    assert every == set(gradients[0])


def save_from_stages(folder):
    accelerator = make_accelerator()
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


def test_a_checkpoint_of_stages_goes_on_in_stages_and_in_one_process(world, tmp_path):
    (after, goes_on), (other, goes_on_there) = world(2).run(save_from_stages, str(tmp_path / "saved"))
    assert goes_on
    assert goes_on_there
    (alone,) = world(1).run(load_in_one_process, str(tmp_path / "saved"))
    for name, value in alone.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=1e-6, msg=name)
        assert other[name].equal(after[name])


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
        accelerator.strategy._settings.split_points = ["blocks.0", "blocks.1"]
        accelerator.prepare(make_model("odd"))
    return accelerator.forward_backward(model, rows, loss_of).item()


def test_wrong_use_is_refused_with_the_right_one_and_does_no_harm(world):
    first, second = world(2).run(use_wrongly)
    assert first == second


def train_in_half(num_stages):
    """Train with bf16 and one micro-batch; one stage is a run without a pipeline."""
    if num_stages == 1:
        accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    else:
        accelerator = make_accelerator(mixed_precision="bf16", num_micro_batches=1)
    model = make_model("odd")
    model, optimizer = accelerator.prepare(model, make_optimizer(model))
    losses = []
    for rows in batches():
        losses.append(accelerator.forward_backward(model, rows, loss_of).item())
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        losses.append(accelerator.forward_backward(model, batches()[0], loss_of).item())
    return losses, accelerator.get_state_dict(model)


def test_a_call_that_trains_in_stages_trains_without_them_too_in_half_precision(world):
    ((losses, state),) = world(1).run(train_in_half, 1)
    for own_losses, own_state in world(2).run(train_in_half, 2):
        assert own_losses == losses
        assert all(own_state[name].equal(value) for name, value in state.items())
