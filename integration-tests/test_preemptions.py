"""A run that is asked to leave, again and again, reaches the result of one that never was."""

import random

import preemptions
import pytest
from forking import Runs


@pytest.fixture(scope="module")
def trainers():
    with Runs(preemptions.SCRIPT) as running:
        yield running


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_run_that_is_stopped_at_random_instants_ends_as_if_it_never_was(trainers, tmp_path, num_processes):
    expected = preemptions.unbroken(trainers, tmp_path / "unbroken", num_processes=num_processes)
    found, num_left = preemptions.broken(
        trainers,
        tmp_path / "broken",
        num_processes=num_processes,
        kills=3,
        chance=random.Random(num_processes),
    )
    assert num_left > 0
    assert found == expected
