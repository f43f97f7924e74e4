"""Tensors that share memory: tied weights, and views of one storage."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import torch

Name = TypeVar("Name", bound=Hashable)
_WITHOUT_ADDRESS = ("meta", "xla")


def id_tensor_storage(tensor: torch.Tensor) -> tuple[torch.device, int, int]:
    """Return device, address and bytes of the memory behind ``tensor``; equal for tensors that share it.

    Tensors without memory that torch knows of (meta, empty, XLA) are told apart by the address of the storage object.
    """
    storage = tensor.untyped_storage()
    has_address = tensor.device.type not in _WITHOUT_ADDRESS and storage.nbytes()
    address = storage.data_ptr() if has_address else storage._cdata
    return tensor.device, address, storage.nbytes()


def id_tensor_view(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return what makes two tensors the very same window on the same memory."""
    window = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
    return (*id_tensor_storage(tensor), *window, tensor.is_conj(), tensor.is_neg())


def aliases(tensors: Mapping[Name, torch.Tensor]) -> dict[Name, Name]:
    """Return the names whose tensor is the very same as an earlier one, with the name of that one."""
    first: dict[tuple[object, ...], Name] = {}
    names = {name: first.setdefault(id_tensor_view(tensor), name) for name, tensor in tensors.items()}
    return {name: kept for name, kept in names.items() if name != kept}


def independent_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return CPU tensors with the same values, each contiguous, no two of them on the same memory.

    Tensors that already are so are returned without a copy.
    """
    taken: set[tuple[torch.device, int, int]] = set()
    alone: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        if id_tensor_storage(dense) in taken:
            dense = dense.clone(memory_format=torch.contiguous_format)
        taken.add(id_tensor_storage(dense))
        alone[name] = dense
    return alone


def clean_state_dict_for_safetensors(state_dict: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return ``state_dict`` without second names for the same tensor, the rest contiguous and unshared.

    Of tied weights the first name stays. Views that only overlap are different tensors: they become copies.
    """
    dropped = aliases(state_dict)
    return independent_tensors({name: t for name, t in state_dict.items() if name not in dropped})
