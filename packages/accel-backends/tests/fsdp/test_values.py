"""Values that only rank 0 has reach every rank, in any mix, buffers included."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from accel_backends.fsdp.values import (
    ReceiveBuffer,
    check_same_model,
    refuse_missing,
    take_values_of_rank_0,
)
from accel_ops.named_tensors import named_tensors
from accel_state.errors import ConfigError
from tools.harness.models import make_model

CPU = torch.device("cpu")


def taken(kind, meta_on_others):
    rank = dist.get_rank()
    model = make_model(kind, seed=7 + rank)
    if rank:
        for name, parameter in list(model.named_parameters(remove_duplicate=False)):
            if name.startswith(meta_on_others):
                module = model.get_submodule(name.rpartition(".")[0])
                setattr(module, name.rpartition(".")[2], torch.nn.Parameter(parameter.to("meta")))
        if kind == "buffered":
            for name, buffer in list(model.named_buffers()):
                setattr(model, name, buffer.to("meta"))
    tensors = named_tensors(model)
    missing = check_same_model(tensors, device=CPU)
    take_values_of_rank_0(tensors, device=CPU)
    return [found.names[0] for found in missing], dict(model.named_parameters()) | dict(model.named_buffers())


def test_every_rank_gets_the_values_of_rank_0_whatever_it_had(world):
    expected = make_model("buffered")
    for missing, values in world(2).run(taken, "buffered", ("blocks.1", "scale")):
        assert missing == []
        for name, value in [*expected.named_parameters(), *expected.named_buffers()]:
            assert torch.equal(values[name], value), name


def missing_on_rank_0():
    model = make_model("odd")
    if dist.get_rank() == 0:
        model.head.to("meta")
    missing = check_same_model(named_tensors(model), device=CPU)
    try:
        refuse_missing(missing)
    except ConfigError as error:
        return [found.names[0] for found in missing], str(error)


def test_what_rank_0_lacks_is_known_on_all_ranks(world):
    for names, message in world(2).run(missing_on_rank_0):
        assert names == ["head.weight", "head.bias"]
        assert message.startswith("`head.weight` has no values on rank 0")


def different():
    model = make_model("odd")
    if dist.get_rank() == 1:
        model.head = torch.nn.Linear(33, 2)
    try:
        check_same_model(named_tensors(model), device=CPU)
    except ConfigError as error:
        return str(error)


def test_ranks_with_different_models_are_named(world):
    assert all(
        "The model on rank 1 is not the model on rank 0" in message for message in world(2).run(different)
    )


def test_groups_lie_in_the_same_memory_one_after_the_other():
    first = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1).bfloat16()).to("meta")
    second = nn.Linear(7, 2).to("meta")
    groups = [named_tensors(first), named_tensors(second)]
    buffer = ReceiveBuffer(device=torch.device("cpu"))
    storages = set()
    for model, group in zip((first, second), groups, strict=True):
        described = [(found.tensor.shape, found.tensor.dtype) for found in group]
        buffer.lend(group)
        assert [(one.shape, one.dtype) for one in model.parameters()] == described
        with torch.no_grad():
            for index, parameter in enumerate(model.parameters()):
                parameter.fill_(index)
        assert all(bool((one == index).all()) for index, one in enumerate(model.parameters()))
        assert all(one.data_ptr() % 64 == 0 and one.requires_grad for one in model.parameters())
        storages |= {one.untyped_storage().data_ptr() for one in model.parameters()}
    assert len(storages) == 1


def test_parameters_that_have_values_keep_them():
    model = nn.Linear(3, 5)
    kept = list(model.parameters())
    buffer = ReceiveBuffer(device=torch.device("cpu"))
    buffer.lend(named_tensors(model))
    assert all(one is other for one, other in zip(model.parameters(), kept, strict=True))
