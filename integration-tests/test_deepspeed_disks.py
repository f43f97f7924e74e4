"""States and parameters on a disk (NVMe) train as one process does, and continue from a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deepspeed_disks
import pytest
import torch
from deepspeed_disks import CLIP, KINDS, NUM_STEPS, make_model, make_optimizer, rows
from deepspeed_launch import assert_equal, results_of
from safetensors.torch import load_file

pytestmark = pytest.mark.engine("disks")


def run_all(folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Return the folder, and what each of two ranks has found."""
    return folder, results_of(deepspeed_disks.__file__, folder)


everything = pytest.mark.parametrize("outcome", [run_all], indirect=True)
each_kind = pytest.mark.parametrize("kind", KINDS)


@everything
@each_kind
def test_what_is_on_a_disk_trains_as_one_process(outcome, kind):
    model = make_model()
    optimizer = make_optimizer(model)
    norms = []
    for _ in range(NUM_STEPS):
        model(rows()).square().mean().backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
        optimizer.zero_grad()
    folder, ranks = outcome
    for found in ranks:
        assert found[kind]["is on disk"]
        assert found[kind]["norms"] == pytest.approx(norms, rel=1e-5)
    weights = load_file(folder / kind / "weights" / "model.safetensors")
    torch.testing.assert_close(weights, dict(model.state_dict()), rtol=0, atol=1e-6)


@everything
@each_kind
def test_a_run_on_a_disk_continues_bit_for_bit_there_and_elsewhere(outcome, kind):
    for ranks in outcome[1]:
        found = ranks[kind]
        for name in ("back", "resumed", "on the CPU"):
            assert_equal(found[name], found["saved"])
        assert found["resumed, later norms"] == found["later norms"]
        assert_equal(found["resumed, later"], found["later"])
        # On the CPU the norm is that of one group, and sums are rounded otherwise.
        assert found["on the CPU, later norms"] == pytest.approx(found["later norms"], rel=1e-5)
    assert len(outcome[1][0][kind]["saved"]) > 4 * 2


@everything
@each_kind
def test_files_that_deepspeed_would_not_load_again_are_refused(outcome, kind):
    for ranks in outcome[1]:
        assert "save in the format `full`" in ranks[kind]["refusal"]


@everything
def test_a_group_with_gradients_that_deepspeed_reads_wrongly_is_refused(outcome):
    for ranks in outcome[1]:
        assert "would read wrong gradients of `2.weight`. Leave the key out" in ranks["one group"]
