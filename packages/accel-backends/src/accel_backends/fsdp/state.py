"""The full state of a sharded model or optimizer, tensor by tensor: gathered for writers, or loaded into shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from accel_backends.fsdp.values import replace_tensor
from accel_checkpoint.pieces import local_pieces, shard_like, ties_in, wrap_like
from accel_checkpoint.tensors import DeferredTensor
from accel_ops.named_tensors import NamedTensor, named_tensors
from accel_state.errors import CheckpointError, ConfigError


@dataclass(slots=True, eq=False, kw_only=True)
class HeldTensor(DeferredTensor):
    """A tensor that only some ranks hold, such as those of one stage of a pipeline. All ranks receive it together.

    Attributes:
        value: The tensor, which may be a `DTensor` over ranks that hold it; None on other ranks.
        holders: Those ranks; the first of them sends it.
        device: Where it is received.
    """

    value: torch.Tensor | None
    holders: tuple[int, ...]
    device: torch.device

    @classmethod
    def of(
        cls,
        value: torch.Tensor | None,
        holders: Sequence[int],
        *,
        dtype: torch.dtype,
        shape: torch.Size,
        device: torch.device,
    ) -> HeldTensor:
        """Return the tensor of the ``holders``."""
        held = cls(
            dtype, shape, torch.Tensor, value=value, holders=tuple(holders), device=torch.device(device)
        )
        held.get = held._broadcast
        return held

    def _broadcast(self) -> torch.Tensor:
        source, value = self.holders[0], self.value
        if isinstance(value, DTensor):
            value = full_tensor(value)
        if dist.get_rank() == source:
            assert value is not None
            full = value.detach().to(self.device).contiguous()
        else:
            full = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        if full.numel():
            dist.broadcast(_bytes(full), src=source)
        return full


@torch.no_grad()
def full_tensor(tensor: DTensor) -> torch.Tensor:
    """Return all of a sharded tensor on the device of its mesh. All ranks of the mesh must call it."""
    tensor = _on_device_of_mesh(tensor)
    if not any(hasattr(placement, "split_factor") for placement in tensor.placements):
        return tensor.full_tensor()
    # `full_tensor` of torch 2.13 warns about a dimension that two axes shard, and orders some of them wrongly.
    full = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    for offset, part in local_pieces(tensor):
        ends = zip(offset, part.shape, strict=True)
        full[tuple(slice(begin, begin + size) for begin, size in ends)] = part
    for axis, placement in enumerate(tensor.placements):
        if not placement.is_replicate():
            # As bytes, of which all ranks but one have zeros, the sum is exact.
            dist.all_reduce(_bytes(full), group=tensor.device_mesh.get_group(axis))
    return full


def _on_device_of_mesh(tensor: DTensor) -> DTensor:
    """Return the tensor where its mesh communicates: NCCL sends no shards that are offloaded to the CPU."""
    local, mesh = tensor.to_local(), tensor.device_mesh
    if local.device.type != "cpu" or mesh.device_type == "cpu":
        return tensor
    return wrap_like(tensor, local.to(mesh.device_type))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of a tensor as bytes, which every backend can send."""
    return tensor.reshape(-1).view(torch.uint8)


def gathered_state(state: Mapping[str, Any], *, is_receiver: bool) -> dict[str, Any]:
    """Return a state dict with full tensors on the CPU; empty on ranks that are no receivers.

    A state without shards is returned as it is, on each rank.

    Every rank must call it. Names of one tensor share one tensor. A rank holds one full tensor at a time on its device;
    `torch.distributed.checkpoint.state_dict` gathers the same, but not tensors of one stage of a pipeline, and writers
    of files would have to wait for all of it.
    """
    if not any(isinstance(value, (DTensor, DeferredTensor)) for value in state.values()):
        return dict(state)
    first_names = ties_in(state)
    full: dict[str, Any] = {}
    for name, value in state.items():
        if name not in first_names:
            full[name] = gathered(value, is_receiver=is_receiver)
        elif is_receiver:
            full[name] = full[first_names[name]]
    return full if is_receiver else {}


def gathered(value: Any, *, is_receiver: bool) -> Any:
    """Gather a sharded or deferred tensor to the CPU of the receivers; pass other values through."""
    if isinstance(value, DeferredTensor):
        value = value.fetch()
    if isinstance(value, DTensor):
        value = full_tensor(value)
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().cpu() if is_receiver else value.new_empty(0)


def deferred_state(state: Mapping[str, Any], *, is_writer: bool) -> dict[str, Any]:
    """Return a state dict with deferred tensors for sharded ones, gathered when the writer fetches them.

    Names of one tensor share one entry.
    """
    first_names = ties_in(state)
    deferred: dict[str, Any] = {}
    for name, value in state.items():
        first = first_names.get(name)
        deferred[name] = _deferred(value, is_writer=is_writer) if first is None else deferred[first]
    return deferred


def deferred_optimizer_state(content: Mapping[str, Any], *, is_writer: bool) -> dict[str, Any]:
    """Return the state dict of an optimizer with deferred tensors for sharded ones."""
    state = {
        number: {name: _deferred(value, is_writer=is_writer) for name, value in values.items()}
        for number, values in content["state"].items()
    }
    return {**content, "state": state}


def _deferred(value: Any, *, is_writer: bool) -> Any:
    if isinstance(value, (DTensor, HeldTensor)):
        return DeferredTensor(value.dtype, value.shape, partial(gathered, value, is_receiver=is_writer))
    return value.detach() if isinstance(value, torch.Tensor) else value


def load_model_state(model: nn.Module, state: Mapping[str, Any], *, strict: bool) -> Any:
    """Load a full state into the shards of ``model``. No communication."""
    own = model.state_dict()
    parts = {
        name: like_parameter(value, own[name]) if name in own else value for name, value in state.items()
    }
    return model.load_state_dict(parts, strict=strict)


@torch.no_grad()
def load_state_of_rank_0(
    model: nn.Module, state: Mapping[str, Any], *, device: torch.device, shard_device: torch.device
) -> None:
    """Load a full state that only rank 0 needs to have into the shards of ``model``. Every rank must call it.

    A rank holds one full tensor at a time. Tensors on the meta device are replaced. torch 2.13's `set_model_state_dict`
    with `broadcast_from_rank0` names no tensor of another shape, and leaves the other ranks waiting.

    Args:
        model: The sharded model.
        state: The state dict; only that of rank 0 is used.
        device: Where tensors are sent and received.
        shard_device: Where parameters on the meta device get their memory; buffers are kept on ``device``.

    Raises:
        CheckpointError: On every rank, if names or shapes differ, naming all.
    """
    tensors = [found for found in named_tensors(model) if found.is_persistent]
    differences = [difference(tensors, state)] if dist.get_rank() == 0 else [""]
    dist.broadcast_object_list(differences, src=0, device=device)
    if differences[0]:
        raise CheckpointError(differences[0])
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
    """Describe the names and shapes in which a state differs from the tensors of a model; empty if none differ."""
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
    """Shard the full state of an optimizer like its parameters. No communication."""
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    of_number = dict(zip(numbers, parameters, strict=True))
    parts = {
        number: {name: like_parameter(value, of_number[number]) for name, value in values.items()}
        for number, values in state["state"].items()
    }
    return {**state, "state": parts}


@torch.no_grad()
def like_parameter(value: Any, parameter: torch.Tensor) -> Any:
    """Shard optimizer state like its parameter if it has its shape; pass other values through. No communication.

    Args:
        value: A state in full, the same on every rank.
        parameter: The parameter, which may be a `DTensor`.

    Raises:
        ConfigError: If the state is on the meta device, where it has no values.
    """
    if not isinstance(value, torch.Tensor) or isinstance(value, DTensor) or value.shape != parameter.shape:
        return value
    if value.dim() == 0:
        return value
    if value.is_meta and not parameter.is_meta:
        raise ConfigError(
            f"The optimizer has a state of shape {tuple(value.shape)} on the meta device: it was made from a model "
            "without values. Make it from the model that `prepare` returned."
        )
    moved = value.to(parameter.device)
    if moved.is_floating_point():
        # Up only: master weights are stored in fp32, and fp32 state of half-precision parameters stays fp32.
        moved = moved.to(torch.promote_types(moved.dtype, parameter.dtype))
    return shard_like(parameter, moved)
