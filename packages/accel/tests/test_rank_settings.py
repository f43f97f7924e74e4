"""Ranks that were given different settings, which `prepare` names."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from accel import Accelerator, DataLoaderConfiguration, FullyShardedDataParallelPlugin
from accel_ops.transport import current_transport, use_transport
from accel_state import ConfigError, PartialState

pytestmark = pytest.mark.usefixtures("fresh_state")


class Stream(IterableDataset):
    def __init__(self, num_rows):
        self.num_rows = num_rows

    def __iter__(self):
        return iter(torch.ones(self.num_rows, 4))


def prepare(
    *,
    optimizer=torch.optim.AdamW,
    num_groups=1,
    num_rows=40,
    batch_size=4,
    stream=False,
    is_sharded=False,
    even_batches=None,
    dispatch_batches=None,
    hyperparameters=(),
    **arguments,
):
    """Prepare a run and return the error, or else the warnings."""
    loading = {"even_batches": even_batches, "dispatch_batches": dispatch_batches}
    loading = {name: value for name, value in loading.items() if value is not None}
    accelerator = Accelerator(
        cpu=True,
        dataloader_config=DataLoaderConfiguration(**loading),
        fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2) if is_sharded else None,
        **arguments,
    )
    model = nn.Linear(4, 4)
    parameters = list(model.parameters())
    groups = [{"params": parameters}] if num_groups == 1 else [{"params": [one]} for one in parameters]
    rows = Stream(num_rows) if stream else torch.ones(num_rows, 4)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        try:
            accelerator.prepare(
                model, optimizer(groups, **dict(hyperparameters)), DataLoader(rows, batch_size=batch_size)
            )
        except ConfigError as error:
            return str(error)
    return [str(one.message) for one in shown]


def prepare_with(differing_rank, differing, common):
    is_different = PartialState(cpu=True).process_index == differing_rank
    return prepare(**common | (differing if is_different else {}))


ERRORS = {
    "precision": ({"mixed_precision": "bf16"}, {}, "`mixed_precision` is no on ranks 0, 2, bf16 on rank 1"),
    "precision of shards": ({"mixed_precision": "bf16"}, {"is_sharded": True}, "`mixed_precision` is no on"),
    "accumulation": (
        {"gradient_accumulation_steps": 2},
        {},
        "`gradient_accumulation_steps` is 1 on ranks 0, 2, 2 on rank 1",
    ),
    "rows": (
        {"num_rows": 24},
        {},
        "`number of steps of loader 0` is 4 on ranks 0, 2, 2 on rank 1",
    ),
    "batch size": ({"batch_size": 2}, {}, "`number of steps of loader 0` is 4 on"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_ranks_that_would_wait_for_each_other_are_an_error_on_each(world, name):
    differing, common, expected = ERRORS[name]
    for message in world(3).run(prepare_with, 1, differing, common):
        assert "The ranks cannot train together" in message
        assert expected in message
        assert message.endswith("`join_uneven_inputs`.")


WARNINGS = {
    "learning rate": (
        {"hyperparameters": [("lr", 0.5)]},
        {},
        "`lr of group 0 of optimizer 0` is 0.001 on rank 0, 0.5 on rank 1",
    ),
    "tuple": (
        {"hyperparameters": [("betas", (0.8, 0.9))]},
        {},
        "`betas of group 0 of optimizer 0` is (0.9, 0.999) on",
    ),
    "of the second group": (
        {"num_groups": 2},
        {},
        "`lr of group 1 of optimizer 0` is missing on rank 0, 0.001 on rank 1",
    ),
    "class": ({"optimizer": torch.optim.SGD}, {}, "`class of optimizer 0` is AdamW on rank 0, SGD on rank 1"),
    "fused": ({"hyperparameters": [("fused", True)]}, {}, "`fused of group 0 of optimizer 0` is None on"),
    "shards": (
        {"hyperparameters": [("weight_decay", 0.0)]},
        {"is_sharded": True},
        "`weight_decay of group 0 of optimizer 0` is 0.01 on rank 0, 0.0 on rank 1",
    ),
    "rows and batch size": (
        {"num_rows": 20, "batch_size": 2},
        {},
        "`batch_size of loader 0` is 4 on rank 0, 2 on rank 1",
    ),
    "rows without another step": (
        {"num_rows": 36},
        {},
        "`number of batches of loader 0` is 10 on rank 0, 9 on rank 1",
    ),
    "rows with uneven batches": (
        {"num_rows": 24},
        {"even_batches": False},
        "`number of batches of loader 0` is 10 on rank 0, 6 on rank 1",
    ),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_other_differences_are_a_warning_of_the_main_process(world, name):
    differing, common, expected = WARNINGS[name]
    first, second = world(2).run(prepare_with, 1, differing, common)
    assert len(first) == 1
    assert first[0].startswith("The ranks were given different settings: ")
    assert first[0].endswith(" Set the same on every rank.")
    assert expected in first[0]
    assert second == []


NAN = {"optimizer": torch.optim.SGD, "hyperparameters": (("lr", math.nan),)}
EQUAL = {
    "nothing": ({}, {}),
    "rows of a stream": ({"num_rows": 3}, {"stream": True}),
    "rows that rank 0 reads": ({"num_rows": 3}, {"dispatch_batches": True}),
    "NaN": ({"hyperparameters": (("lr", float("nan")),)}, NAN),
}


@pytest.mark.parametrize("name", EQUAL)
def test_what_may_differ_is_not_mentioned(world, name):
    assert world(3).run(prepare_with, 2, *EQUAL[name]) == [[], [], []]


class Counting:
    """The transport of this process, which counts collectives."""

    def __init__(self):
        self._transport, self.num_calls = current_transport(), 0

    def __getattr__(self, name):
        return getattr(self._transport, name)

    def all_gather(self, tensors):
        self.num_calls += 1
        return self._transport.all_gather(tensors)


def collectives_of_prepare():
    accelerator = Accelerator(cpu=True)
    counts = []
    for model in (nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False), None):
        with use_transport(Counting()) as counting:
            optimizer = torch.optim.SGD([torch.ones(1)] if model is None else model.parameters())
            things = [] if model is None else [model, optimizer]
            accelerator.prepare(*things, DataLoader(torch.ones(4, 2)))
        counts.append(counting.num_calls)
    return counts


def test_equal_ranks_make_one_exchange_where_they_prepare_a_model_to_train(world):
    assert world(2).run(collectives_of_prepare) == [[1, 0, 0]] * 2


def prepare_a_loader_on_the_main_process():
    accelerator = Accelerator(cpu=True)
    if accelerator.is_main_process:
        accelerator.prepare(DataLoader(torch.ones(4, 2)))
    return accelerator.gather(torch.ones(1)).tolist()


def test_a_single_rank_may_prepare_a_loader(world):
    assert world(3).run(prepare_a_loader_on_the_main_process) == [[1, 1, 1]] * 3
