"""The whole state of a sharded model or optimizer, tensor by tensor: gathered for one rank, or cut from a whole one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from accel_backends.sharding.receiving import HeldTensor, Receivers
from accel_backends.sharding.replacements import like_parameter
from accel_backends.sharding.values import replace_tensor
from accel_checkpoint.formats.deferred import DeferredTensor
from accel_checkpoint.pieces import ties_in
from accel_ops.named_tensors import NamedTensor, named_tensors
from accel_state.errors import CheckpointError


def gathered_state(state: Mapping[str, Any], *, is_receiver: bool) -> dict[str, Any]:
    """Return a state dict with whole tensors on the CPU; empty where ``is_receiver`` is not set.

    Every rank must call it. A single receiver gets each tensor from the others; names of one tensor get one tensor.
    """
    receivers = Receivers(is_receiver=is_receiver)
    first_names = ties_in(state)
    whole: dict[str, Any] = {}
    for name, value in state.items():
        if name in first_names:
            if is_receiver:
                whole[name] = whole[first_names[name]]
            continue
        found = gathered(value, receivers)
        if is_receiver:
            whole[name] = found
    return whole


def gathered(value: Any, receivers: Receivers) -> Any:
    """Return what other ranks hold, too, whole on the CPU of the receivers, other values as they are."""
    if isinstance(value, DeferredTensor) and not isinstance(value, HeldTensor):
        value = value.fetch()
    if isinstance(value, (DTensor, HeldTensor)):
        value = receivers.receive(value)
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def deferred_state(state: Mapping[str, Any], *, is_writer: bool) -> dict[str, Any]:
    """Return a state dict in which what other ranks hold, too, is sent to those that write it, when they do.

    Names of one tensor have one.
    """
    receivers = Receivers(is_receiver=is_writer)
    first_names = ties_in(state)
    deferred: dict[str, Any] = {}
    for name, value in state.items():
        deferred[name] = deferred[first_names[name]] if name in first_names else _deferred(value, receivers)
    return deferred


def deferred_optimizer_state(content: Mapping[str, Any], *, is_writer: bool) -> dict[str, Any]:
    """Return the state dict of an optimizer in which what other ranks hold, too, is sent to those that write it."""
    receivers = Receivers(is_receiver=is_writer)
    state = {
        number: {name: _deferred(value, receivers) for name, value in values.items()}
        for number, values in content["state"].items()
    }
    return {**content, "state": state}


def _deferred(value: Any, receivers: Receivers) -> Any:
    if isinstance(value, (DTensor, HeldTensor)):
        return DeferredTensor(value.dtype, value.shape, partial(gathered, value, receivers))
    return value.detach() if isinstance(value, torch.Tensor) else value


def load_model_state(model: nn.Module, state: Mapping[str, Any], *, strict: bool) -> Any:
    """Load a whole state into the shards of ``model``; each rank cuts its own parts. No communication."""
    own = model.state_dict()
    parts = {
        name: like_parameter(value, own[name]) if name in own else value for name, value in state.items()
    }
    return model.load_state_dict(parts, strict=strict)


@torch.no_grad()
def load_state_of_rank_0(
    model: nn.Module, state: Mapping[str, Any], *, device: torch.device, shard_device: torch.device
) -> None:
    """Load a whole state that only rank 0 needs to have into the shards of ``model``. Every rank must call it.

    A rank holds one whole tensor at a time beside what it was given. What is on the meta device is replaced.

    Args:
        model: The sharded model.
        state: The state dict; only that of rank 0 is looked at.
        device: Where tensors are sent and received.
        shard_device: Where parameters on the meta device get their memory; buffers are kept on ``device``.

    Raises:
        CheckpointError: On every rank, if names or shapes differ, naming all.
    """
    tensors = [found for found in named_tensors(model) if found.is_persistent]
    said = [difference(tensors, state)] if dist.get_rank() == 0 else [""]
    dist.broadcast_object_list(said, src=0, device=device)
    if said[0]:
        raise CheckpointError(said[0])
    for found in tensors:
        whole = torch.empty(found.tensor.shape, dtype=found.tensor.dtype, device=device)
        if dist.get_rank() == 0:
            whole.copy_(next(state[name] for name in found.names if name in state))
        if whole.numel():
            dist.broadcast(whole, src=0)
        if found.tensor.is_meta:
            kept_on = shard_device if isinstance(found.tensor, DTensor) else device
            replace_tensor(found, torch.empty_like(found.tensor.detach(), device=kept_on))
        found.tensor.detach().copy_(like_parameter(whole, found.tensor.detach()))


def difference(tensors: Sequence[NamedTensor], state: Mapping[str, Any]) -> str:
    """Return in what names and shapes a state differs from the tensors of a model; empty if it does not."""
    of_name = {name: found for found in tensors for name in found.names}
    differences = [
        f"`{name}` has the shape {tuple(value.shape)} in the state and {tuple(of_name[name].tensor.shape)} in the model"
        for name, value in state.items()
        if name in of_name and value.shape != of_name[name].tensor.shape
    ]
    missing = [found.names[0] for found in tensors if not any(name in state for name in found.names)]
    for what, names in (("state", missing), ("model", [name for name in state if name not in of_name])):
        if names:
            differences.append(f"not in the {what}: {', '.join(f'`{name}`' for name in names)}")
    return "\n- ".join(["The state does not fit the model:", *differences]) if differences else ""


def sharded_optimizer_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a whole state with each part cut like the parameter it belongs to. No communication."""
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    of_number = dict(zip(numbers, parameters, strict=True))
    parts = {
        number: {name: like_parameter(value, of_number[number]) for name, value in values.items()}
        for number, values in state["state"].items()
    }
    return {**state, "state": parts}
