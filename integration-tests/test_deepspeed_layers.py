"""TP ranks with DeepSpeed must train as one process does on full ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deepspeed_layers
import pytest
import torch
from deepspeed_launch import assert_equal, results_of
from deepspeed_layers import (
    ACCUMULATE,
    CASES,
    CLIP,
    MODELS,
    NUM_BATCHES,
    RESUMED,
    TOLERANCES,
    loss_of,
    make_optimizer,
    rows,
)
from safetensors.torch import load_file

pytestmark = pytest.mark.engine("deepspeed")


def run_all(folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Return the folder, and what each of four ranks has found."""
    return folder, results_of(deepspeed_layers.__file__, folder, num_processes=4)


everything = pytest.mark.parametrize("outcome", [run_all], indirect=True)


def train_alone(kind: str) -> dict[str, Any]:
    """Train with plain PyTorch on the micro-batches of both data ranks."""
    from libraries import tiny

    model = tiny.make_model(**MODELS[kind])
    model.model.norm.weight.requires_grad_(False)
    optimizer = make_optimizer([one for one in model.parameters() if one.requires_grad])
    ids = torch.stack([row["input_ids"] for row in rows()]).split(2)
    losses, norms = [], []
    for index in range(NUM_BATCHES):
        pair = [loss_of(model, one) for one in ids[2 * index : 2 * index + 2]]
        (sum(pair) / (2 * ACCUMULATE)).backward()
        losses.append([loss.detach() for loss in pair])
        if (index + 1) % ACCUMULATE == 0:
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
            optimizer.step()
            optimizer.zero_grad()
    return {"losses": losses, "norms": norms, "state": model.state_dict()}


@everything
@pytest.mark.parametrize("section", CASES)
def test_ranks_that_share_layers_train_as_one_process(outcome, section):
    expected = train_alone(CASES[section])
    tolerance = TOLERANCES.get(section, 1e-6)
    for rank, ranks in enumerate(outcome[1]):
        found = ranks[section]
        losses = [pair[rank // 2] for pair in expected["losses"]]
        torch.testing.assert_close(found["losses"], losses, rtol=tolerance, atol=tolerance, check_dtype=False)
        assert found["norms"] == pytest.approx(expected["norms"], rel=10 * tolerance)
        if rank == 0:
            assert list(found["state"]) == list(expected["state"])
            torch.testing.assert_close(
                found["state"], dict(expected["state"]), rtol=0, atol=tolerance, check_dtype=False
            )


@everything
def test_loaders_deal_to_data_ranks_and_each_sample_is_gathered_once(outcome):
    wanted = torch.stack([row["input_ids"] for row in rows()])
    for found in outcome[1]:
        assert torch.equal(found["zero1"]["seen"], wanted)


@everything
def test_another_number_of_tp_ranks_is_refused_while_the_first_lives(outcome):
    for found in outcome[1]:
        assert "`tp_size` is 1" in found["refused"]
        assert "free_memory" in found["refused"]


@everything
@pytest.mark.parametrize("section", RESUMED)
def test_a_checkpoint_has_full_weights_and_continues_with_or_without_shared_layers(outcome, section):
    folder, ranks = outcome
    for found in (ranks_of[f"resume-{section}"] for ranks_of in ranks):
        for name in ("resumed", "back"):
            assert_equal(found[name], found["whole"])
        assert_equal(found["of four"], found["saved"])
    weights = load_file(folder / f"weights-{section}" / "model.safetensors")
    assert_equal(weights, ranks[0][f"resume-{section}"]["saved"])
    shapes = {name: value.shape for name, value in train_alone("odd")["state"].items()}
    assert {name: value.shape for name, value in weights.items()} == shapes
