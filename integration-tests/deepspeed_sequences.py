"""Shares sequences between two ranks, which DeepSpeed trains on them, and writes what came out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed.nn.functional as collectives
from deepspeed_rows import begin
from libraries import tiny
from torch.nn import functional as F
from torch.utils.data import DataLoader

from accel import DeepSpeedPlugin, ParallelismConfig
from accel_state import DeepSpeedSequenceParallelConfig

CLIP, RATE, LENGTH = 0.5, 0.1, 8


def rows() -> list[dict[str, torch.Tensor]]:
    """Return six sequences, of which tokens at the beginning do not count: other numbers of them on each rank."""
    ids = torch.randint(4, 20, (6, LENGTH), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    for index, row in enumerate(labels):
        row[: index + 1] = -100
    return [{"input_ids": one, "labels": label} for one, label in zip(ids, labels, strict=True)]


def padded_left() -> list[dict[str, torch.Tensor]]:
    """Return the sequences as a generation has them: padding comes first."""
    masks = torch.ones(6, LENGTH, dtype=torch.int64)
    masks[::2, :3] = 0
    return [
        {"input_ids": row["input_ids"], "attention_mask": mask}
        for row, mask in zip(rows(), masks, strict=True)
    ]


def train(stage: int, *, by_items: bool, folder: Path | None = None, resumes: bool = False) -> dict[str, Any]:
    """Train on three batches; save after the first to ``folder``, or with ``resumes`` continue from there."""
    config = {
        "zero_optimization": {"stage": stage},
        "train_micro_batch_size_per_gpu": 2,
        "train_batch_size": "auto",
    }
    accelerator = begin(
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config, zero3_init_flag=False),
        parallelism_config=ParallelismConfig(
            sp_size=2,
            sp_backend="deepspeed",
            sp_handler=DeepSpeedSequenceParallelConfig(sp_attn_implementation="sdpa"),
        ),
    )
    model = tiny.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(rows(), batch_size=2))
    losses, norms, batches, drawn = [], [], [], []
    layers = accelerator.unwrap_model(model).get_input_embeddings()
    layers.register_forward_hook(lambda *_: drawn.append(torch.rand(3)))
    if resumes:
        accelerator.load_state(folder)
        loader = accelerator.skip_first_batches(loader, 1)
    for batch in loader:
        batches.append(batch)
        labels = batch.pop("shift_labels")
        logits = model(**batch).logits
        summed = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
        num = (labels != -100).sum()
        if by_items:
            accelerator.backward(summed / num.clamp(min=1), num_items=num)
            total, count = accelerator.reduce(summed.detach()), accelerator.reduce(num)
            losses.append(total / count)
        else:
            total, count = sum(collectives.all_gather(summed)), sum(collectives.all_gather(num))
            accelerator.backward(total / count)
            losses.append((total / count).detach())
        norms.append(float(accelerator.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
        optimizer.zero_grad()
        if folder is not None and not resumes and len(batches) == 1:
            accelerator.save_state(folder)
    state = dict(accelerator.get_state_dict(model))
    shapes = [{name: tuple(value.shape) for name, value in batch.items()} for batch in batches]
    positions = batches[0]["position_ids"]
    model.eval()
    held_out = accelerator.prepare(
        DataLoader(padded_left(), batch_size=3)
    )  # alone, so that its sequences are full
    with torch.no_grad():
        logits = [model(**batch).logits for batch in held_out]
    with_model = {name: tuple(value.shape) for name, value in next(iter(loader)).items()}
    accelerator.free_memory()
    return {
        "losses": losses, "norms": norms, "state": state, "shapes": shapes, "positions": positions,
        "drawn": drawn, "drawn after": torch.rand(3), "logits": logits, "shapes in evaluation": with_model,
    }  # fmt: skip


def main() -> None:
    place = Path(sys.argv[1])
    results = {}
    for stage in (0, 1, 2, 3):
        results[f"zero{stage}"] = train(stage, by_items=bool(stage % 2), folder=place / f"saved{stage}")
        results[f"resumed{stage}"] = train(
            stage, by_items=bool(stage % 2), folder=place / f"saved{stage}", resumes=True
        )
    accelerator = begin()
    torch.save(results, place / f"{accelerator.process_index}.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main()
