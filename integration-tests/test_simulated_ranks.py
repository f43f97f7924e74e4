"""What `accel plan` reports of a step is what hundreds of ranks do, as far as one machine can show it."""

import json
from pathlib import Path

import preloaded
import pytest
import simulated_ranks

from tools.harness.scripts import run_script

pytestmark = pytest.mark.engine("long")

SCRIPT = Path(simulated_ranks.__file__)


def test_the_collectives_of_a_step_on_512_ranks_are_those_of_the_plan():
    done = run_script(SCRIPT, "step", "512", timeout_s=240, preload=preloaded.ACCEL)
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout.splitlines()[-1])
    for name, found in zip(simulated_ranks.LAYOUTS, counted, strict=True):
        assert found == simulated_ranks.planned_collectives(name, 512), name


def test_prepare_step_and_save_communicate_as_often_on_more_ranks():
    done = run_script(SCRIPT, "growth", "16", "512", timeout_s=240, preload=preloaded.ACCEL)
    assert done.returncode == 0, done.stderr
    few_sharded, sharded, few_full, full = (told for _, told in json.loads(done.stdout.splitlines()[-1]))
    for few, many in ((few_sharded, sharded), (few_full, full)):
        assert few == many
    assert sharded["collectives"][-1] == 0  # each rank writes its own parts
    assert full["collectives"][-1] > 0
    assert len(sharded["rounds of the save"]) == 7
