"""What a user may change while training continues, and what the next step must then do."""

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from accel import Accelerator, AutocastKwargs

pytestmark = pytest.mark.usefixtures("fresh_state")

ONES = torch.ones(1, 1)


def prepared(**options):
    """Return an accelerator, a prepared `y = w x` with w = 0, and its optimizer with lr 1."""
    accelerator = Accelerator(cpu=True, **options)
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return accelerator, *accelerator.prepare(model, SGD(model.parameters(), lr=1.0))


def one_step(accelerator, model, optimizer):
    """Go through one micro-batch whose gradient is 1, and return the weight after it."""
    with accelerator.accumulate(model):
        accelerator.backward(-model(ONES).sum())
        optimizer.step()
        optimizer.zero_grad()
    return model.weight.item()


def test_another_number_of_accumulation_steps_counts_and_divides_from_the_next_step_on():
    accelerator, model, optimizer = prepared(gradient_accumulation_steps=1)
    assert one_step(accelerator, model, optimizer) == 1.0
    accelerator.gradient_accumulation_steps = 2
    assert [one_step(accelerator, model, optimizer) for _ in range(3)] == [1.5, 1.5, 2.5]
    accelerator.gradient_state.plugin_kwargs["num_steps"] = 1
    assert one_step(accelerator, model, optimizer) == 3.5


def test_the_end_of_a_loader_ends_an_accumulation_only_while_that_is_wanted():
    accelerator, model, optimizer = prepared(gradient_accumulation_steps=4)
    loader = accelerator.prepare(DataLoader(range(2)))

    def epoch():
        for _ in loader:
            weight = one_step(accelerator, model, optimizer)
        return accelerator.sync_gradients, weight

    assert epoch() == (True, 0.5)
    accelerator.gradient_state.plugin_kwargs["sync_with_dataloader"] = False
    assert epoch() == (False, 0.5)
    accelerator.gradient_state.plugin_kwargs["sync_with_dataloader"] = True
    assert epoch() == (True, 1.5)


def test_a_hand_that_sets_sync_gradients_decides_whether_the_optimizer_steps():
    accelerator, model, optimizer = prepared()
    accelerator.sync_gradients = False
    accelerator.backward(-model(ONES).sum())
    optimizer.step()
    assert model.weight.item() == 0.0
    accelerator.sync_gradients = True
    optimizer.step()
    assert model.weight.item() == 1.0


def test_a_learning_rate_set_by_hand_holds_at_the_next_step():
    accelerator, model, optimizer = prepared()
    one_step(accelerator, model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.25
    assert one_step(accelerator, model, optimizer) == 1.25


def test_another_optimizer_put_into_the_prepared_one_is_the_one_that_steps():
    accelerator, model, optimizer = prepared()
    one_step(accelerator, model, optimizer)
    optimizer.optimizer = SGD(model.parameters(), lr=0.5)
    assert one_step(accelerator, model, optimizer) == 1.5


def test_another_scheduler_put_into_the_prepared_one_sets_the_rate():
    accelerator, model, optimizer = prepared()
    scheduler = accelerator.prepare(LambdaLR(optimizer.optimizer, lambda step: 1.0))
    one_step(accelerator, model, optimizer)
    scheduler.step()
    scheduler.scheduler = LambdaLR(optimizer.optimizer, lambda step: 0.5**step)
    one_step(accelerator, model, optimizer)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert scheduler.get_last_lr() == [0.5]


def test_a_scheduler_may_stop_following_the_optimizer():
    accelerator, model, optimizer = prepared(gradient_accumulation_steps=2)
    scheduler = accelerator.prepare(LambdaLR(optimizer.optimizer, lambda step: 0.5**step))
    one_step(accelerator, model, optimizer)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 1.0
    scheduler.step_with_optimizer = False
    optimizer.optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_hooks_added_and_removed_between_steps_are_heeded():
    accelerator, model, optimizer = prepared()
    seen = []
    one_step(accelerator, model, optimizer)
    handles = [
        model.register_forward_pre_hook(lambda *_: seen.append("before forward")),
        model.register_forward_hook(lambda *_: seen.append("after forward")),
        model.weight.register_hook(lambda gradient: seen.append("gradient")),
        optimizer.register_step_pre_hook(lambda *_: seen.append("before step")),
        optimizer.register_step_post_hook(lambda *_: seen.append("after step")),
    ]
    one_step(accelerator, model, optimizer)
    assert seen == ["before forward", "after forward", "gradient", "before step", "after step"]
    for handle in handles:
        handle.remove()
    one_step(accelerator, model, optimizer)
    assert len(seen) == 5


def test_a_gradient_hook_that_changes_the_gradient_changes_the_step():
    accelerator, model, optimizer = prepared()
    handle = model.weight.register_hook(lambda gradient: gradient * 3)
    assert one_step(accelerator, model, optimizer) == 3.0
    handle.remove()
    assert one_step(accelerator, model, optimizer) == 4.0


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_frozen_and_thawed_parameters_follow_at_once(precision):
    accelerator, model, optimizer = prepared(mixed_precision=precision)
    model.weight.requires_grad_(False)
    assert not model(ONES).requires_grad
    model.weight.requires_grad_(True)
    assert one_step(accelerator, model, optimizer) == 1.0


def test_a_module_exchanged_inside_the_model_is_the_one_that_computes():
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = accelerator.prepare(nn.Sequential(nn.Identity(), nn.Linear(1, 1, bias=False)))
    nn.init.ones_(model[1].weight)
    model[0] = nn.Hardtanh(-0.5, 0.5)
    outputs = model(ONES)
    assert (outputs.item(), outputs.dtype) == (0.5, torch.float32)


def test_autocast_may_be_chosen_again_for_every_block():
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    dtypes = []
    for handler in (None, AutocastKwargs(enabled=False), AutocastKwargs(enabled=True)):
        with accelerator.autocast(handler):
            dtypes.append((ONES @ ONES).dtype)
    assert dtypes == [torch.bfloat16, torch.float32, torch.bfloat16]


def test_a_model_that_computes_under_autocast_lets_the_surroundings_be():
    _, model, _ = prepared(mixed_precision="bf16")
    seen = []
    model.register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    inner = nn.Linear(1, 1)
    inner.register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    model(ONES)
    inner(ONES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(ONES)
        inner(ONES)
    assert seen == [False, False, True, True]


def replaced_between_steps():
    """Run two micro-batches, then one more with other settings; return each rank's weight after each."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    model, optimizer = accelerator.prepare(model, SGD(model.parameters(), lr=1.0))
    mine = torch.full((1, 1), float(2 * accelerator.process_index))
    gradients = []

    def micro_batch():
        with accelerator.accumulate(model):
            accelerator.backward(-model(mine).sum())
            gradients.append(model.module.weight.grad.item())
            optimizer.step()
            optimizer.zero_grad()

    micro_batch()  # kept back: each rank has its own
    micro_batch()
    accelerator.gradient_state.plugin_kwargs["sync_each_batch"] = True
    micro_batch()  # averaged at once
    micro_batch()
    accelerator.gradient_state.plugin_kwargs["sync_each_batch"] = False
    micro_batch()
    return gradients


def test_data_parallel_ranks_may_change_when_they_synchronise(world):
    first, second = world(2).run(replaced_between_steps)
    assert (first[0], second[0]) == (0.0, -1.0)
    assert first[1] == second[1] == -1.0
    assert first[2] == second[2] == -0.5
    assert first[3] == second[3] == -1.0
    assert (first[4], second[4]) == (0.0, -1.0)
