"""Smaller projects written against Accelerate give the same numbers on accel, from first to last digit."""

from __future__ import annotations

from pathlib import Path

import pytest
from both_sides import ACCEL, PEER, Side, largest_difference, on_both_sides

from tools.engines.preparing import CLIENTS_FOLDER

pytestmark = pytest.mark.engine("libraries")


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_script_in_the_manner_of_diffusers_saves_on_the_main_process(tmp_path, num_processes):
    ours, theirs = on_both_sides("diffusion_script", tmp_path, num_processes=num_processes)
    assert largest_difference(ours, theirs)[0] == 0
    assert ours["kept"] == [6, 8]
    assert ours["losses, resumed"] == ours["losses"][-len(ours["losses, resumed"]) :]


def test_compressed_tensors_takes_offloaded_models_and_gives_them_back(tmp_path):
    ours, theirs = on_both_sides("compressed", tmp_path)
    assert largest_difference(ours, theirs)[0] == 0
    for name, values in ours.items():
        if name.endswith((", returned", ", saved")):
            assert values == ours[f"{name.rpartition(', ')[0]}, changed"]


def test_estimators_of_skorch(tmp_path):
    assert largest_difference(*on_both_sides("estimators", tmp_path))[0] == 0


def outcomes_of_skorch(side: Side, folder: Path) -> list[str]:
    """Return how skorch's own tests of Accelerate end, one line each."""
    tests = CLIENTS_FOLDER / "skorch" / "tests" / "test_hf.py"
    words = ["-p", "no:randomly", "-p", "no:cacheprovider", "-q", "-rA", "-k", "TestAccelerate", str(tests)]
    code = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    done = side.run("-c", code, *words, f"--rootdir={folder}", folder=folder)
    return sorted(line for line in done.stdout.splitlines() if line.startswith(("PASSED", "FAILED", "ERROR")))


def test_skorchs_own_tests(tmp_path):
    ours, theirs = outcomes_of_skorch(ACCEL, tmp_path), outcomes_of_skorch(PEER, tmp_path)
    assert ours == theirs
    assert sum(line.startswith("PASSED") for line in ours) > 10
