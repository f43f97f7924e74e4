"""What is known of a model whose parameters were flattened: what each was called, and where it went."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from accel_backends.sharding.replicated import ReplicatedParameters
from accel_ops.named_tensors import NamedTensor

_WRAPPED = "_fsdp_wrapped_module."


@dataclass(eq=False)
class FlatModel:
    """One model that was sharded.

    Attributes:
        root: The model as it was wrapped.
        whole: The parameters that every rank keeps whole.
        shapes: Shape of each tensor in the plain model's state dict, in its order.
        aliases: For each further name of a tied tensor, its first.
        originals: Names in the plain model, by the parameter that was in it before; weakly, by identity.
        names: Names in the plain model, by the `id` of the parameter that an optimizer steps. Several, in the order
            of the model, where that is a flat parameter.
        sharded: The `id` of each parameter of which this rank has a part.
        is_accumulating: Whether backward leaves gradients as they are on each rank.
    """

    root: FullyShardedDataParallel
    whole: ReplicatedParameters
    shapes: dict[str, torch.Size]
    aliases: dict[str, str]
    originals: MutableMapping[torch.Tensor, str]
    names: dict[int, tuple[str, ...]]
    sharded: frozenset[int]
    is_accumulating: bool = False

    def units(self) -> dict[str, FullyShardedDataParallel]:
        """Return the modules that torch gathers as one, by their names in the plain model; the root has none."""
        return {
            plain_name(name): module
            for name, module in self.root.named_modules()
            if isinstance(module, FullyShardedDataParallel)
        }


def plain_name(name: str) -> str:
    """Return what a tensor or module of a flattened model is called in the plain one."""
    return f"{name}.".replace(_WRAPPED, "")[:-1]


def state_shapes(model: nn.Module, tensors: Iterable[NamedTensor]) -> dict[str, torch.Size]:
    """Return the shape of each tensor in the state dict of ``model``, which is not sharded yet, in its order."""
    shapes = {name: found.tensor.shape for found in tensors for name in found.names}
    return {name: shapes[name] for name in model.state_dict() if name in shapes}
