"""Tensors that share memory: tied weights, and views of one storage."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import torch

Name = TypeVar("Name", bound=Hashable)
_WITHOUT_ADDRESS = ("meta", "xla")  # their `data_ptr` does not identify memory


def id_tensor_storage(tensor: torch.Tensor) -> tuple[torch.device, int, int]:
    """Return device, address and bytes of the storage of ``tensor``; equal for tensors that share it, of any shape.

    Without an address (meta, empty, XLA), the address of the storage object distinguishes tensors.
    """
    storage = tensor.untyped_storage()
    has_address = tensor.device.type not in _WITHOUT_ADDRESS and storage.nbytes()
    address = storage.data_ptr() if has_address else storage._cdata
    return tensor.device, address, storage.nbytes()


def id_tensor_view(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return storage, shape, strides, offset and dtype: equal for two tensors that are the same view, on any device."""
    window = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
    return (*id_tensor_storage(tensor), *window, tensor.is_conj(), tensor.is_neg())


def aliases(tensors: Mapping[Name, torch.Tensor]) -> dict[Name, Name]:
    """Return the names whose tensor is the same view as an earlier one, with the earlier name; on any device."""
    first: dict[tuple[object, ...], Name] = {}
    names = {name: first.setdefault(id_tensor_view(tensor), name) for name, tensor in tensors.items()}
    return {name: kept for name, kept in names.items() if name != kept}


def independent_tensors(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return CPU tensors of the same shapes and values, each contiguous, no two of them in the same memory.

    A tensor that already meets this is returned without a copy.
    """
    taken: set[tuple[torch.device, int, int]] = set()
    independent: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        if id_tensor_storage(dense) in taken:  # safetensors refuses tensors that share memory
            dense = dense.clone(memory_format=torch.contiguous_format)
        taken.add(id_tensor_storage(dense))
        independent[name] = dense
    return independent


def clean_state_dict_for_safetensors(state_dict: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return ``state_dict`` as contiguous, unshared CPU tensors of the same shapes, without second names of a tensor.

    Tied weights keep their first name. Views that only overlap are different tensors: they are copied.
    """
    dropped = aliases(state_dict)
    return independent_tensors({name: t for name, t in state_dict.items() if name not in dropped})
