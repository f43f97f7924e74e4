"""What a script may forget is reported once, with a hint."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from accel import Accelerator

pytestmark = pytest.mark.usefixtures("fresh_state")


def heard(run, *args, **kwargs):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(*args, **kwargs)
    return [str(one.message) for one in caught]


def accumulate(*, is_prepared=True, is_plain=False, skips=False, is_guarded=False):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = (
        accelerator.prepare(model, optimizer) if is_prepared else (accelerator.prepare(model), optimizer)
    )
    for number in range(8):
        with accelerator.accumulate(model):
            loss = model(torch.ones(2, 1)).sum()
            if is_plain:
                loss.backward()
            elif not (skips and number % 2):
                accelerator.backward(loss)
            if accelerator.sync_gradients or not is_guarded:
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_an_optimizer_that_is_not_prepared_is_named(world, num_ranks):
    first, *others = world(num_ranks).run(heard, accumulate, is_prepared=False)
    assert others == [[]] * (num_ranks - 1)
    (message,) = first
    assert "`SGD` is not prepared" in message
    assert "`accelerator.prepare(model, optimizer)`" in message


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_plain_backward_within_accumulate_is_reported(world, num_ranks):
    first, *others = world(num_ranks).run(heard, accumulate, is_plain=True)
    assert others == [[]] * (num_ranks - 1)
    (message,) = first
    assert "divides them by the 4 micro-batches" in message
    assert "`accelerator.backward(loss)`" in message


@pytest.mark.parametrize("settings", [{}, {"skips": True}, {"is_prepared": False, "is_guarded": True}])
def test_there_is_nothing_to_report_of_what_is_right(world, settings):
    assert world(2).run(heard, accumulate, **settings) == [[], []]


def train(kind):
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    data = TensorDataset(torch.arange(8.0).view(8, 1))
    parts = DistributedSampler(data, accelerator.num_processes, accelerator.process_index)
    loader = DataLoader(
        data, batch_size=2, shuffle=kind == "shuffled", sampler=parts if kind == "distributed" else None
    )
    if kind == "prepared":
        loader = accelerator.prepare(loader)
    for _ in range(2):
        for (rows,) in loader:
            accelerator.backward(model(rows).sum())
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("kind", ["in order", "shuffled"])
def test_a_loader_that_is_not_prepared_is_named_on_several_ranks(world, kind):
    ((message,), others) = world(2).run(heard, train, kind)
    assert others == []
    assert "over a `TensorDataset` is not prepared, so each of 2 processes reads all rows" in message
    assert world(1).run(heard, train, kind) == [[]]


@pytest.mark.parametrize("kind", ["prepared", "distributed"])
def test_a_loader_of_which_each_rank_reads_its_part_is_not_named(world, kind):
    assert world(2).run(heard, train, kind) == [[], []]


def log(tmp_path, *, log_with, is_started):
    accelerator = Accelerator(cpu=True, log_with=log_with, project_dir=tmp_path)
    if is_started:
        accelerator.init_trackers("run")
    for step in range(3):
        accelerator.log({"loss": 1.0}, step=step)
    accelerator.end_training()


def test_logging_without_started_trackers_is_reported(tmp_path):
    (message,) = heard(log, tmp_path, log_with="jsonl", is_started=False)
    assert "Call `init_trackers` first" in message


@pytest.mark.parametrize(("log_with", "is_started"), [(None, False), ("jsonl", True)])
def test_logging_as_chosen_is_not_reported(tmp_path, log_with, is_started):
    assert heard(log, tmp_path, log_with=log_with, is_started=is_started) == []
