from __future__ import annotations

import pytest
import torch

from accel import Accelerator
from accel import profiling as module
from accel.profiling import Throughput

pytestmark = pytest.mark.usefixtures("fresh_state")
CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    """Return a list of one number, the time."""
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def test_figures_are_those_of_the_steps_since_the_last_ones(clock):
    meter = Throughput(CPU, num_ranks=2, counts_flops=False)
    assert meter.figures() == {}
    for seconds in (1.0, 3.0):
        with meter.step(num_items=100):
            clock[0] += seconds
    assert meter.figures() == {"items_per_s": 100.0, "step_s": 2.0}
    clock[0] += 50.0  # an evaluation
    with meter.step(num_items=10):
        clock[0] += 1.0
    assert meter.figures() == {"items_per_s": 20.0, "step_s": 1.0}


def test_operations_are_counted_once_in_a_step_that_is_not_timed(clock):
    meter = Throughput(CPU, peak_flops=1e6)
    layer = torch.nn.Linear(16, 32, bias=False)
    for seconds in (40.0, 0.5):
        with meter.step(num_items=8):
            layer(torch.ones(8, 16)).sum().backward()
            clock[0] += seconds
    products = 2 * 8 * 16 * 32  # forward, and the gradients of the weights
    assert meter.figures() == {
        "items_per_s": 16.0,
        "step_s": 0.5,
        "flops_per_step": 2 * products,
        "flops_per_s": 4 * products,
        "mfu": 4 * products / 1e6,
    }


def test_what_is_not_known_is_left_out(clock):
    meter = Throughput(CPU)
    for _ in range(2):
        with meter.step(num_items=1):
            clock[0] += 1.0
    assert set(meter.figures()) == {"items_per_s", "step_s"}


def test_the_accelerator_makes_one_for_its_ranks_and_device():
    meter = Accelerator(cpu=True).throughput(count_flops=False)
    with meter.step(num_items=4):
        pass
    assert meter.figures()["items_per_s"] > 0
    assert "mfu" not in meter.figures()
