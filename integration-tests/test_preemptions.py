"""A run that is requested to leave, again and again, reaches the result of one that never was."""

import random

import preemptions
import pytest

pytestmark = pytest.mark.engine("long")


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_run_that_is_stopped_at_random_instants_ends_as_if_it_never_was(tmp_path, num_processes):
    expected = preemptions.unbroken(tmp_path / "unbroken", num_processes=num_processes)
    chance = random.Random(num_processes)
    found, num_left = preemptions.broken(
        tmp_path / "broken", num_processes=num_processes, kills=3, chance=chance
    )
    assert num_left > 0
    assert found == expected
