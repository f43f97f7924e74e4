"""Forked workers: a Ctrl-C is not lost where Python drops exceptions, and no worker collects inherited garbage."""

import gc
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, TensorDataset

from accel_data import prepare_data_loader
from accel_data.loaders.workers import delayed_interrupt

armed: list[bool] = []


def interrupt_once() -> None:
    if armed:
        armed.clear()
        os.kill(os.getpid(), signal.SIGINT)


os.register_at_fork(before=interrupt_once)


@pytest.fixture
def loader():
    yield prepare_data_loader(DataLoader(TensorDataset(torch.arange(4)), num_workers=1))
    armed.clear()


def test_an_interrupt_within_the_fork_of_a_worker_is_raised(loader):
    armed.append(True)
    with pytest.raises(KeyboardInterrupt):
        list(loader)


def test_the_handler_is_the_one_before_afterwards(loader):
    before = signal.getsignal(signal.SIGINT)
    assert len(list(loader)) == 4
    assert signal.getsignal(signal.SIGINT) is before


def test_workers_are_started_from_another_thread_too(loader):
    with ThreadPoolExecutor(1) as thread:
        assert len(thread.submit(list, loader).result()) == 4


def test_a_second_interrupt_ends_a_start_that_hangs():
    def start():
        with delayed_interrupt():
            signal.raise_signal(signal.SIGINT)
            reached.append("the body goes on")
            signal.raise_signal(signal.SIGINT)
            reached.append("too far")

    reached = []
    with pytest.raises(KeyboardInterrupt):
        start()
    assert reached == ["the body goes on"]


def test_an_ignored_interrupt_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with delayed_interrupt():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


class CollectingDataset(Dataset):
    """Collects garbage in the worker, as any worker does from time to time."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        gc.collect()
        return index


class Holder:
    """Refers to itself, so that only the garbage collector finds what it holds."""

    def __init__(self, held):
        self.held = held
        self.itself = self


def test_a_worker_leaves_a_process_group_of_its_parent_alone():
    loader = prepare_data_loader(DataLoader(CollectingDataset(), num_workers=1, timeout=60))
    gc.disable()
    try:
        # Its finalizer waits for threads, which the worker does not have.
        Holder(dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=5)))
        assert [batch.item() for batch in loader] == [0, 1]
    finally:
        gc.enable()
        gc.collect()
