import os
import re
import signal
import subprocess
import threading
import time
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from accel import Accelerator
from accel.preemption import REQUEUE, SIGNALS
from accel_state.errors import ConfigError, StateError
from tools.harness.scripts import run_script, start_ranks, torchrun

pytestmark = pytest.mark.usefixtures("fresh_state")

# A build of torch for GPUs logs warnings of its own, e.g. that triton is not installed.
WARNING_OF_TORCH = re.compile(r"^W\d{4} \S+ \d+ torch/.*\n", re.MULTILINE)


@pytest.fixture
def handling():
    """Handle preemption in this process, and stop that after the test."""
    opened = []

    def handle(**options):
        accelerator = Accelerator(cpu=True)
        opened.append(accelerator.handle_preemption(**options))
        return accelerator, opened[-1]

    yield handle
    for preemption in opened:
        preemption.close()


def test_loaders_prepared_later_are_kept_too_until_handling_ends(handling):
    accelerator, preemption = handling()
    loader = accelerator.prepare(DataLoader([0, 1], num_workers=1))
    assert list(loader.worker_init_fn.signals) == [signal.SIGTERM, signal.SIGUSR1]
    assert accelerator.prepare(DataLoader([0, 1])).worker_init_fn is None
    preemption.close()
    assert not loader.worker_init_fn.signals


class Pids(Dataset):
    """Samples that show which process has read them."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.tensor([index, os.getpid()])


@pytest.mark.parametrize("signum", SIGNALS)
def test_loader_workers_outlive_a_signal_to_all_processes_of_the_job(handling, signum):
    accelerator, _ = handling()
    seen = []
    for (sample,) in accelerator.prepare(DataLoader(Pids(), batch_size=1, num_workers=2)):
        seen.append(sample[0].item())
        if len(seen) == 3:
            # Not by this process, which is the one that may end its workers.
            subprocess.run(["kill", f"-{int(signum)}", str(sample[1].item())], check=True)
    assert seen == list(range(64))


def send(signum):
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize("signum", SIGNALS)
def test_a_signal_stops_the_run_after_a_complete_step(handling, signum):
    accelerator, preemption = handling()
    preemption.advance()
    send(signum)
    assert not accelerator.should_stop
    preemption.advance()
    assert accelerator.should_stop


def test_without_handling_nothing_requests_a_stop():
    assert not Accelerator(cpu=True).should_stop


def test_earlier_handlers_are_called_and_restored(handling):
    heard = []

    def earlier(signum, frame):
        heard.append(signum)

    before = signal.signal(signal.SIGUSR1, earlier)
    try:
        _, preemption = handling()
        send(signal.SIGUSR1)
        assert heard == [signal.SIGUSR1]
        preemption.close()
        assert signal.getsignal(signal.SIGUSR1) is earlier
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_that_was_installed_since_stays(handling):
    _, preemption = handling(signals=[signal.SIGUSR1])
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        preemption.close()
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    assert before is not None


def test_the_block_leaves_with_the_exit_code_when_all_stop(handling):
    accelerator, preemption = handling(exit_code=3)
    with pytest.raises(SystemExit) as left, preemption:
        send(signal.SIGTERM)
        preemption.advance()
        assert accelerator.should_stop
    assert left.value.code == 3
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_DFL)


def test_the_block_continues_without_a_request(handling):
    _, preemption = handling()
    with preemption:
        preemption.advance()
    assert not preemption.is_open
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_an_error_in_the_block_is_not_hidden(handling):
    _, preemption = handling()
    with pytest.raises(ValueError, match="mine"), preemption:
        send(signal.SIGTERM)
        preemption.advance()
        raise ValueError("mine")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_ending_the_training_restores_the_handlers(handling):
    accelerator, _ = handling()
    accelerator.end_training()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    accelerator.handle_preemption().close()


def test_handling_twice_at_once_is_an_error(handling):
    accelerator, _ = handling()
    with pytest.raises(StateError, match="handled already"):
        accelerator.handle_preemption()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"signals": []}, "`signals` is empty"),
        ({"signals": [signal.SIGKILL]}, "no process can handle"),
        ({"signals": [12345]}, "no process can handle"),
        ({"grace_period_s": 0}, "must be positive or None"),
        ({"exit_code": 300}, "between 0 and 255, got 300"),
    ],
)
def test_invalid_arguments_are_rejected_before_anything_is_installed(options, message):
    with pytest.raises(ConfigError, match=message):
        Accelerator(cpu=True).handle_preemption(**options)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_only_the_main_thread_can_handle_signals():
    accelerator = Accelerator(cpu=True)
    errors = []

    def elsewhere():
        try:
            accelerator.handle_preemption()
        except StateError as error:
            errors.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert errors == ["Signals can be handled in the main thread only. Call `handle_preemption` there."]


def test_a_forked_child_keeps_the_original_effect_of_signals(handling):
    handling()
    child = os.fork()
    if child == 0:
        try:
            time.sleep(20)
        finally:
            os._exit(1)
    time.sleep(0.1)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
import torch
from accel import Accelerator

folder, how, at = Path(sys.argv[1]), sys.argv[2], 6
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
rank = accelerator.process_index
model = torch.nn.Linear(2, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
(folder / f"{rank}.pid").write_text(str(os.getpid()))
seen = []
with accelerator.handle_preemption(grace_period_s=60):
    for step in range(100_000):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 2)).sum())
            optimizer.step()
            optimizer.zero_grad()
        if how == "itself" and step == at and rank == accelerator.num_processes - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        if step == at:
            (folder / f"{rank}.running").touch()
        seen.append(accelerator.should_stop)
        if accelerator.should_stop:
            (folder / f"{rank}.stop").write_text(f"{step} {accelerator.sync_gradients} {sum(seen)}")
            break
        time.sleep(0.002)
(folder / "beyond").touch()
"""


def stops(folder, num_processes):
    return [(folder / f"{rank}.stop").read_text().split() for rank in range(num_processes)]


def check_stops(folder, num_processes):
    told = stops(folder, num_processes)
    assert len({step for step, _, _ in told}) == 1, told
    assert int(told[0][0]) >= 6
    assert all((synced, times) == ("True", "1") for _, synced, times in told)
    assert not (folder / "beyond").exists()


def stops_itself(folder, **options):
    script = folder / "train.py"
    script.write_text(SCRIPT)
    return run_script(script, str(folder), "itself", timeout_s=120, **options), folder


def stops_itself_under_torchrun(folder):
    script = folder / "train.py"
    script.write_text(SCRIPT)
    return run_script(*torchrun(2), str(script), str(folder), "itself", timeout_s=120), folder


@pytest.mark.parametrize(
    ("outcome", "num_processes"),
    [(partial(stops_itself, num_processes=num), num) for num in (1, 2, 4)],
    ids=[1, 2, 4],
    indirect=["outcome"],
)
def test_a_signal_to_one_rank_stops_all_at_the_same_step_and_leaves_for_requeueing(outcome, num_processes):
    done, folder = outcome
    assert done.returncode == REQUEUE, done.stderr
    check_stops(folder, num_processes)
    assert "terminate called" not in done.stderr


@pytest.mark.engine("long")
@pytest.mark.parametrize("outcome", [stops_itself_under_torchrun], ids=["two"], indirect=True)
def test_under_torchrun_the_ranks_stop_together_too(outcome):
    done, folder = outcome
    assert done.returncode == 1, "torchrun reports every failure as 1"
    assert f"exitcode  : {REQUEUE}" in done.stderr
    check_stops(folder, 2)


def told_from_outside(folder, *, signum, target):
    script = folder / "train.py"
    script.write_text(SCRIPT)
    with start_ranks([script, folder, "waits"], 2) as ranks:
        deadline = time.monotonic() + 120
        while not all((folder / f"{rank}.running").exists() for rank in (0, 1)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        ranks[target].process.send_signal(signum)
        exit_codes = [rank.process.wait(timeout=120) for rank in ranks]
        return exit_codes, [rank.stderr for rank in ranks], folder


@pytest.mark.parametrize(
    "outcome",
    [
        partial(told_from_outside, signum=signal.SIGTERM, target=0),
        partial(told_from_outside, signum=signal.SIGUSR1, target=1),
    ],
    ids=["SIGTERM to 0", "SIGUSR1 to 1"],
    indirect=True,
)
def test_a_signal_from_outside_stops_both_ranks(outcome):
    exit_codes, errors, folder = outcome
    assert exit_codes == [REQUEUE] * 2, errors
    assert not any(WARNING_OF_TORCH.sub("", error) for error in errors), errors
    check_stops(folder, 2)
