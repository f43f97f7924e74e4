"""Two ranks with DeepSpeed must train as one process would that accumulates their micro-batches."""

from __future__ import annotations

from pathlib import Path

import deepspeed_rows
import pytest
import torch
from deepspeed_launch import results_of
from deepspeed_rows import ACCUMULATE, CLIP, ENGINES, MODELS, NUM_BATCHES, NUM_EPOCHS

from tools.harness.models import make_model

pytestmark = pytest.mark.engine("deepspeed")


def run_rows(folder: Path) -> list[dict[str, dict]]:
    """Return what each of two ranks has come to."""
    return results_of(deepspeed_rows.__file__, folder)


def train_alone(kind: str) -> dict:
    """Train with plain PyTorch on the micro-batches of both ranks."""
    model = make_model(kind)
    optimizer = torch.optim.AdamW(deepspeed_rows.trained(model), lr=0.01)
    batches = deepspeed_rows.rows().split(4)
    losses, norms = [], []
    for _ in range(NUM_EPOCHS):
        for index in range(NUM_BATCHES):
            pair = [model(rows).square().mean() for rows in batches[2 * index : 2 * index + 2]]
            (sum(pair) / (2 * ACCUMULATE)).backward()
            losses.append([loss.detach() for loss in pair])
            if (index + 1) % ACCUMULATE == 0 or index == NUM_BATCHES - 1:
                norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
                optimizer.step()
                optimizer.zero_grad()
                for (
                    group
                ) in optimizer.param_groups:  # two steps of the schedule, since two ranks read batches
                    group["lr"] = 0.01 / (1 + 2 * len(norms))
    return {"losses": losses, "norms": norms, "state": model.state_dict()}


@pytest.mark.parametrize("outcome", [run_rows], indirect=True)
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("engine", ENGINES)
def test_two_ranks_train_as_one_process(outcome, engine, kind):
    expected = train_alone(kind)
    for rank, ranks in enumerate(outcome):
        found = ranks[f"{engine}-{kind}"]
        torch.testing.assert_close(
            found["losses"], [losses[rank] for losses in expected["losses"]], rtol=1e-6, atol=1e-6
        )
        assert found["norms"] == pytest.approx(expected["norms"], rel=1e-5)
        if rank == 0 or found["state"]:
            assert list(found["state"]) == list(expected["state"])
            torch.testing.assert_close(found["state"], dict(expected["state"]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("outcome", [run_rows], indirect=True)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bf16_keeps_close_to_fp32(outcome, stage):
    expected = train_alone("odd")
    found = outcome[0][f"bf16-zero{stage}"]
    assert {value.dtype for value in found["state"].values()} == {torch.bfloat16}
    assert {loss.dtype for loss in found["losses"]} == {torch.float32}
    # A bfloat16 has 8 bits, and Adam takes a step of the same size whatever the size of a gradient.
    assert found["norms"] == pytest.approx(expected["norms"], rel=0.15)
    wanted = [losses[0] for losses in expected["losses"]]
    torch.testing.assert_close(found["losses"], wanted, rtol=0.05, atol=0.05)
