"""Two CP and SP ranks must train as one process does on full ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed_launch import results_of
from torch.nn import functional as F

pytestmark = pytest.mark.engine("deepspeed")

SCRIPT = Path(__file__).with_name("deepspeed_sequences.py")


def run_all(folder: Path) -> list[dict[str, Any]]:
    """Return what each of two ranks has found."""
    return results_of(SCRIPT, folder)


def train_alone() -> dict[str, Any]:
    """Train with plain PyTorch on full sequences."""
    from deepspeed_sequences import CLIP, RATE, padded_left, rows
    from libraries import tiny

    model = tiny.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses, norms = [], []
    for start in range(0, 6, 2):
        ids, labels = (
            torch.stack([row[key] for row in rows()[start : start + 2]]) for key in ("input_ids", "labels")
        )
        logits = model(input_ids=ids).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        loss.backward()
        losses.append(loss.detach())
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    held_out = padded_left()
    columns = {key: torch.stack([row[key] for row in held_out]) for key in held_out[0]}
    with torch.no_grad():
        logits = model(**columns).logits
    return {"losses": losses, "norms": norms, "state": model.state_dict(), "logits": logits}


@pytest.mark.parametrize("outcome", [run_all], indirect=True)
def test_cp_and_sp_ranks_train_as_one_process(outcome):
    expected = train_alone()
    for rank, found in enumerate(outcome):
        for stage in ("zero0", "zero1", "zero2", "zero3"):
            one = found[stage]
            part = {"input_ids": (2, 4), "shift_labels": (2, 4), "position_ids": (2, 4)}
            assert one["shapes"] == [{name: part[name] for name in one["shapes"][0]}] * 3
            assert one["positions"].tolist() == [list(range(4 * rank, 4 * rank + 4))] * 2
            torch.testing.assert_close(one["losses"], expected["losses"], rtol=1e-6, atol=1e-6)
            assert one["norms"] == pytest.approx(expected["norms"], rel=1e-5)
            if rank == 0:
                torch.testing.assert_close(one["state"], dict(expected["state"]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("outcome", [run_all], indirect=True)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_sequence_parallel_ranks_continue_from_a_checkpoint_bit_for_bit(outcome, stage):
    for found in outcome:
        whole, resumed = found[f"zero{stage}"], found[f"resumed{stage}"]
        assert (resumed["losses"], resumed["norms"]) == (whole["losses"][1:], whole["norms"][1:])
        assert resumed["state"].keys() == whole["state"].keys()
        assert all(torch.equal(value, whole["state"][name]) for name, value in resumed["state"].items())


@pytest.mark.parametrize("outcome", [run_all], indirect=True)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_ranks_with_other_tokens_draw_other_numbers_in_the_model_only(outcome, stage):
    first, second = (found[f"zero{stage}"] for found in outcome)
    for one, other in zip(first["drawn"], second["drawn"], strict=True):
        assert not torch.equal(one, other)
    assert torch.equal(first["drawn after"], second["drawn after"])
    for found in outcome:  # the state of a checkpoint is all there is
        assert torch.equal(found[f"zero{stage}"]["drawn"][1], found[f"resumed{stage}"]["drawn"][0])


@pytest.mark.parametrize("outcome", [run_all], indirect=True)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_full_sequences_are_evaluated_as_by_one_process_also_padded_on_the_left(outcome, stage):
    wanted = train_alone()["logits"]
    for found in outcome:
        one = found[f"zero{stage}"]
        torch.testing.assert_close(torch.cat(one["logits"]), wanted, rtol=0, atol=1e-5)
        assert one["shapes in evaluation"]["input_ids"] == (2, 8)
