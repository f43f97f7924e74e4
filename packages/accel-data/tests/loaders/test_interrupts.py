"""A Ctrl-C is not lost where Python drops exceptions."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from accel_data import prepare_data_loader
from accel_data.loaders.interrupts import delayed_interrupt

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


def test_an_ignored_interrupt_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with delayed_interrupt():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
