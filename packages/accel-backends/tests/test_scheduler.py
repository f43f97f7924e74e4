from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR

from accel_backends import AcceleratedOptimizer, AcceleratedScheduler
from accel_state import PartialState
from accel_state.errors import ConfigError
from accel_state.gradient_state import current_gradient

pytestmark = pytest.mark.usefixtures("fresh_state")


class Loader:
    """What the gradient state knows of a loader."""

    end_of_dataloader = False
    remainder = -1


def optimizer_with(lr=1.0):
    weight = nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    return AcceleratedOptimizer(torch.optim.SGD([weight], lr=lr))


def halving(optimizer, **options):
    """A schedule whose learning rate after n steps is 2**-n."""
    return AcceleratedScheduler(LambdaLR(optimizer.optimizer, lambda step: 0.5**step), optimizer, **options)


@pytest.mark.parametrize(
    ("options", "steps_per_call"),
    [
        ({"num_replicas": 1}, 1),
        ({"num_replicas": 3}, 3),
        ({"num_replicas": 3, "split_batches": True}, 1),
        ({"num_replicas": 3, "step_with_optimizer": False}, 1),
        ({"num_replicas": 3, "step_with_optimizer": False, "split_batches": True}, 1),
        ({"num_replicas": 3, "scheduler_unit": "process"}, 3),
        ({"num_replicas": 3, "scheduler_unit": "optimizer_step"}, 1),
        ({"num_replicas": 3, "scheduler_unit": "optimizer_step", "split_batches": True}, 1),
        ({"num_replicas": 3, "scheduler_unit": "optimizer_step", "step_with_optimizer": False}, 1),
    ],
)
def test_the_table_of_steps_per_call(options, steps_per_call):
    optimizer = optimizer_with()
    scheduler = halving(optimizer, **options)
    for num_calls in (1, 2):
        optimizer.step()
        scheduler.step()
        assert scheduler.get_last_lr() == [0.5 ** (steps_per_call * num_calls)]
    assert optimizer.param_groups[0]["lr"] == scheduler.get_last_lr()[0]


def test_replicas_are_the_processes_of_the_run():
    PartialState(cpu=True)
    optimizer = optimizer_with()
    scheduler = halving(optimizer)
    optimizer.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.5]


def body_two_processes(**options):
    optimizer = optimizer_with()
    scheduler = halving(optimizer, **options)
    optimizer.step()
    scheduler.step()
    return scheduler.get_last_lr()


def test_two_processes_step_twice_unless_the_unit_is_the_optimizer_step(world):
    assert world(2).run(body_two_processes) == [[0.25], [0.25]]
    assert world(2).run(body_two_processes, scheduler_unit="optimizer_step") == [[0.5], [0.5]]


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_the_unit_process_gives_one_rate_for_a_number_of_samples_when_each_process_keeps_its_batch(
    world_size,
):
    optimizer = optimizer_with()
    scheduler = halving(optimizer, num_replicas=world_size)
    for _ in range(16 // world_size):  # 16 batches in all
        optimizer.step()
        scheduler.step()
    assert scheduler.get_last_lr() == [0.5**16]


@pytest.mark.parametrize("world_size", [1, 2, 8])
def test_the_unit_optimizer_step_gives_one_rate_for_a_number_of_samples_when_the_global_batch_stays(
    world_size,
):
    optimizer = optimizer_with()
    scheduler = halving(optimizer, num_replicas=world_size, scheduler_unit="optimizer_step")
    for _ in range(16):  # 16 global batches, each split over the processes
        optimizer.step()
        scheduler.step()
    assert scheduler.get_last_lr() == [0.5**16]


@pytest.mark.parametrize(("adjust", "counted"), [(True, 4), (False, 2)])
def test_accumulating_moves_no_rate_and_is_counted_if_the_plugin_adjusts(adjust, counted):
    current_gradient().plugin_kwargs = {"adjust_scheduler": adjust}
    optimizer = optimizer_with()
    scheduler = halving(optimizer, num_replicas=1)
    rates = []
    for syncs in (False, False, True):
        current_gradient()._set_sync_gradients(syncs)
        optimizer.step()
        scheduler.step()
        rates += scheduler.get_last_lr()
    assert rates == [1.0, 1.0, 0.5]
    assert scheduler.scheduler._step_count == counted


class Skipping(AcceleratedOptimizer):
    """An optimizer whose last step overflowed."""

    step_was_skipped = True


def test_a_skipped_step_moves_nothing_even_if_another_optimizer_stepped():
    good = optimizer_with()
    bad = Skipping(optimizer_with().optimizer)
    schedule = LambdaLR(good.optimizer, lambda step: 0.5**step)
    scheduler = AcceleratedScheduler(schedule, [good, bad], num_replicas=1)
    good.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [1.0]
    AcceleratedScheduler(schedule, [good], num_replicas=1).step()
    assert scheduler.get_last_lr() == [0.5]


def test_a_step_that_a_script_calls_an_overflow_is_skipped():
    optimizer = optimizer_with()
    scheduler = halving(optimizer, num_replicas=1)
    optimizer._is_overflow = True
    scheduler.step()
    assert scheduler.get_last_lr() == [1.0]
    optimizer._is_overflow = False
    optimizer.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.5]


def test_a_skipped_step_is_nothing_to_a_scheduler_on_its_own():
    optimizer = Skipping(optimizer_with().optimizer)
    scheduler = halving(optimizer, step_with_optimizer=False)
    optimizer.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.5]


def test_a_plain_torch_optimizer_never_skips():
    optimizer = optimizer_with().optimizer
    scheduler = AcceleratedScheduler(StepLR(optimizer, 1, gamma=0.5), optimizer, num_replicas=1)
    optimizer.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.5]


def test_one_cycle_ends_at_its_end_although_steps_overshoot():
    optimizer = optimizer_with()
    schedule = OneCycleLR(optimizer.optimizer, max_lr=1.0, total_steps=7)
    scheduler = AcceleratedScheduler(schedule, optimizer, num_replicas=2)
    for _ in range(5):
        optimizer.step()
        scheduler.step()
    assert schedule.last_epoch == 6
    assert schedule.get_last_lr()[0] < 1e-3, "beyond its last step the rate would rise again"


def test_one_cycle_of_optimizer_steps_reaches_its_end_under_accumulation():
    optimizer = optimizer_with()
    schedule = OneCycleLR(optimizer.optimizer, max_lr=1.0, total_steps=4)
    scheduler = AcceleratedScheduler(schedule, optimizer, num_replicas=1)
    for index in range(12):
        current_gradient()._set_sync_gradients(index % 4 == 3)
        optimizer.step()
        scheduler.step()
    assert schedule.last_epoch == 3


def plateau(optimizer, **options):
    schedule = ReduceLROnPlateau(optimizer.optimizer, factor=0.5, patience=1)
    return AcceleratedScheduler(schedule, optimizer, **options)


def test_plateau_takes_one_measurement_per_call_whatever_the_processes():
    optimizer = optimizer_with()
    scheduler = plateau(optimizer, num_replicas=4)
    rates = []
    for _ in range(4):
        optimizer.step()
        scheduler.step(1.0)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates == [1.0, 1.0, 0.5, 0.5]


def test_plateau_counts_an_epochs_metric_whatever_the_last_batch_was():
    optimizer = Skipping(optimizer_with().optimizer)
    scheduler = plateau(optimizer, num_replicas=2)
    current_gradient()._set_sync_gradients(False)
    for _ in range(3):
        scheduler.step(1.0)
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_plateau_follows_the_optimizer_inside_a_loop():
    optimizer = optimizer_with()
    scheduler = plateau(optimizer, num_replicas=2)
    loader = Loader()
    current_gradient()._add_dataloader(loader)
    for syncs in (False, False, False, True):
        current_gradient()._set_sync_gradients(syncs)
        optimizer.step()
        scheduler.step(1.0)
    assert scheduler.num_bad_epochs == 0
    assert scheduler.best == 1.0
    assert scheduler.last_epoch == 1
    current_gradient()._remove_dataloader(loader)


def test_state_goes_out_and_in():
    optimizer = optimizer_with()
    scheduler, other = (
        AcceleratedScheduler(StepLR(inner.optimizer, 1, gamma=0.5), inner, num_replicas=1)
        for inner in (optimizer, optimizer_with())
    )
    optimizer.step()
    scheduler.step()
    other.load_state_dict(scheduler.state_dict())
    assert other.last_epoch == 1
    assert other.get_last_lr() == [0.5]


def test_the_rest_is_the_wrapped_schedulers(capsys):
    scheduler = AcceleratedScheduler(StepLR(optimizer_with().optimizer, 1), optimizer_with(), num_replicas=1)
    assert scheduler.base_lrs == [1.0]
    with pytest.warns(UserWarning, match="get_last_lr"):
        assert scheduler.get_lr() == [1.0]
    with pytest.raises(AttributeError, match="nothing_like_that"):
        _ = scheduler.nothing_like_that


class Printing(StepLR):
    def print_lr(self, verbose):
        print("rate", verbose)


def test_print_lr_prints(capsys):
    scheduler = AcceleratedScheduler(Printing(optimizer_with().optimizer, 1), optimizer_with())
    scheduler.print_lr(True)
    assert capsys.readouterr().out == "rate True\n"


@pytest.mark.parametrize(
    "copied_by", [copy.deepcopy, lambda scheduler: pickle.loads(pickle.dumps(scheduler))]
)
def test_copies_obey_the_gradient_state_of_the_process(copied_by):
    optimizer = optimizer_with()
    scheduler = AcceleratedScheduler(
        StepLR(optimizer.optimizer, 1, gamma=0.5), optimizer.optimizer, num_replicas=1
    )
    loader = Loader()
    current_gradient()._add_dataloader(loader)  # held weakly, which cannot be pickled
    copied = copied_by(scheduler)
    current_gradient()._set_sync_gradients(False)
    copied.step()
    assert copied.get_last_lr() == [1.0]
    current_gradient()._set_sync_gradients(True)
    copied.scheduler.optimizer.step()
    copied.step()
    assert (copied.get_last_lr(), scheduler.get_last_lr()) == ([0.5], [1.0])


def test_an_unknown_unit_is_refused():
    with pytest.raises(ConfigError, match="`scheduler_unit` must be process or optimizer_step, got `epoch`"):
        halving(optimizer_with(), scheduler_unit="epoch")


def test_split_batches_and_the_gradient_state_can_be_set_afterwards():
    optimizer = optimizer_with()
    scheduler = halving(optimizer, num_replicas=3)
    scheduler.split_batches = True
    optimizer.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.5]
    assert optimizer.gradient_state is scheduler.gradient_state is current_gradient()
