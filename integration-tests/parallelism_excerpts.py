"""What the processes of `test_parallelism_excerpts.py` do: they run blocks of a page with their own model."""

import sys
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

from accel import Accelerator, ParallelismConfig

sys.path.append(str(Path(__file__).parents[1] / "docs" / "examples"))  # for live processes
from every_axis import Language, Sources

NUM_ROWS = 16


class Words(nn.Sequential):
    """An embedding and a head whose logits stay sharded."""

    parallel_plan: ClassVar = {"tensor": {"1": "colwise_loss_parallel"}}


def run(text, **names):
    """Run a block, and return what it has named by then."""
    names |= {"nn": nn, "Accelerator": Accelerator, "ParallelismConfig": ParallelismConfig}
    exec(text, names)
    return names


def language():
    """Return a model, its optimizer and a loader with labels moved one token ahead."""
    torch.manual_seed(0)
    model = Language()
    loader = DataLoader(Subset(Sources(), range(NUM_ROWS)), batch_size=4)
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3), "loader": loader}


def prepared(**sizes):
    """Return an accelerator, and what `language` returns, prepared."""
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(**sizes))
    made = language()
    return {"accelerator": accelerator, **dict(zip(made, accelerator.prepare(*made.values()), strict=True))}


def whole_values(model):
    """Return copies of the parameters, put together from their parts."""
    return [
        getattr(each, "full_tensor", lambda each=each: each)().detach().clone() for each in model.parameters()
    ]


def has_learnt(model, before):
    """Return True if parameters of this rank's part of the model are not what they were before."""
    after = whole_values(model)
    assert [each.shape for each in after] == [each.shape for each in before]
    return not all(map(torch.equal, after, before))


def share_vocabulary(text):
    """Run the block about `loss_parallel`; return whether the loss is that of full logits."""
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(tp_size=2))
    torch.manual_seed(0)
    model = Words(nn.Embedding(8, 4), nn.Linear(4, 8))
    tokens, labels = torch.arange(6).view(2, 3), torch.arange(1, 7).view(2, 3)
    expected = nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
    names = run(text, accelerator=accelerator, model=accelerator.prepare(model), tokens=tokens, labels=labels)
    return torch.allclose(names["loss"].full_tensor(), expected)


def share_sequences(text):
    """Run the block that builds an Accelerator; return whether the model has learnt."""
    made = language()
    before = whole_values(made["model"])
    with patch.dict("os.environ", ACCELERATE_USE_CPU="true"):
        return has_learnt(run(text, **made)["model"], before)


def share_stages(text):
    """Run the block about pipelines with CP or SP; return whether this rank's stage has learnt."""
    made = prepared(pp_size=2, sp_size=2, sp_backend="torch")
    before = whole_values(made["model"])
    return has_learnt(run(text, **made)["model"], before)
