import os
import signal
import subprocess
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from accel_data import keep_workers, prepare_data_loader
from accel_data.loaders.workers import WorkerStart

pytestmark = [
    pytest.mark.usefixtures("fresh_state"),
    pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="who sent a signal is not told here"),
]


class Pids(Dataset):
    """Samples that show which process has read them."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor([index, os.getpid()])


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1])
def test_workers_outlive_a_signal_to_all_processes_of_the_job(signum):
    loader = prepare_data_loader(DataLoader(Pids(), batch_size=1, num_workers=2))
    keep_workers(loader, [signum])
    seen = []
    for (sample,) in loader:
        seen.append(sample[0].item())
        if len(seen) == 3:
            # Not by this process, which is the one that may end its workers.
            subprocess.run(["kill", f"-{int(signum)}", str(sample[1].item())], check=True)
    assert seen == list(range(64))


class SignalledWhenUnpickled(Pids):
    """A data set that signals the worker that gets it: before `worker_init_fn`, from another process."""

    def __setstate__(self, state):
        self.__dict__.update(state)
        subprocess.run(["kill", f"-{int(signal.SIGTERM)}", str(os.getpid())], check=True)


@pytest.mark.engine("long")
def test_a_spawned_worker_outlives_a_signal_while_it_starts():
    dataset = SignalledWhenUnpickled()
    dataset.state = "a state, so that it is set"
    loader = DataLoader(dataset, batch_size=32, num_workers=1, multiprocessing_context="spawn")
    keep_workers(loader, [signal.SIGTERM])
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert [int(row[0]) for batch in loader for row in batch] == list(range(64))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask


def start_worker(start):
    """Run `start` in a forked child, which then waits, and return its pid once it does."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            start(0)
            os.write(writer, b"x")
            time.sleep(20)
        finally:  # whatever a signal raises, this copy of pytest must not continue
            os._exit(1)
    os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    return child


def test_a_worker_goes_when_its_own_process_ends_it():
    child = start_worker(WorkerStart([signal.SIGTERM], None))
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_without_signals_a_worker_works_as_usual():
    child = start_worker(WorkerStart([], None))
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM


def test_the_loaders_own_start_is_kept_and_not_wrapped_twice():
    started = []
    loader = DataLoader([1], num_workers=1, worker_init_fn=started.append)
    keep_workers(loader, [])
    keep_workers(loader, [])
    loader.worker_init_fn(3)
    assert started == [3]
    assert loader.worker_init_fn.then == started.append
