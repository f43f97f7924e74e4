"""Weights that FSDP version 2 gathers in 8 bits: half of what bf16 sends.

See https://pytorch.org/blog/training-using-float8-fsdp2/.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from accel_checkpoint.pieces import wrap_like
from accel_state.errors import ConfigError
from accel_state.logging import get_logger

if TYPE_CHECKING:
    from accel_ops.named_tensors import NamedTensor

logger = get_logger(__name__)


class Float8Gathering:
    """Wraps the weights of torchao's layers before they are sharded, and computes their scales after each step.

    In a checkpoint, and for optimizers, they are what they would be otherwise.
    """

    def __init__(self) -> None:
        # A list: its order is that of the model, the same on every rank.
        self._layers: list[weakref.ref[nn.Module]] = []
        self._watched: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def wrap(self, owned: Sequence[NamedTensor], *, num_shards: int) -> None:
        """Wrap those parameters that only layers of torchao use; each layer gets a new one with the same values.

        What ``num_shards`` does not divide is gathered in bf16: torchao 0.18 hands over shards of different sizes.

        Raises:
            ConfigError: If one has no values yet.
        """
        from torchao.float8.float8_linear import Float8Linear
        from torchao.float8.fsdp_utils import WeightWithDynamicFloat8CastTensor

        for found in owned:
            layers = [module for module, key in found.places if key == "weight"]
            if not all(isinstance(module, Float8Linear) for module, _ in found.places) or not layers:
                continue
            if found.tensor.shape[0] % num_shards:
                logger.warning_once(
                    "`%s` is gathered in bf16: its %d rows are no multiple of %d ranks.",
                    found.names[0],
                    found.tensor.shape[0],
                    num_shards,
                )
                continue
            if found.tensor.is_meta:
                raise ConfigError(
                    f"`{found.names[0]}` is read from files, which weights that are gathered in 8 bits cannot be. Pass "
                    "`AORecipeKwargs(enable_fsdp_float8_all_gather=False)`, or build the model with its weights on "
                    "rank 0."
                )
            layer: Any = layers[0]
            wrapped = WeightWithDynamicFloat8CastTensor(
                found.tensor.detach(), layer.linear_mm_config, layer.config.cast_config_weight.target_dtype
            )
            weight = nn.Parameter(wrapped, requires_grad=found.tensor.requires_grad)
            for module in layers:
                module._parameters["weight"] = weight
                self._add(module)

    def stored(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return a parameter without its wrapping, in the same memory."""
        return stored(parameter)

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Compute the scales of the weights that ``optimizer`` steps after each step, in one collective.

        Otherwise each weight would have one of its own, before it is gathered.
        """
        if optimizer not in self._watched:
            self._watched.add(optimizer)
            optimizer.register_step_post_hook(lambda stepped, args, kwargs: self._compute_scales(stepped))

    def _compute_scales(self, optimizer: torch.optim.Optimizer) -> None:
        from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self._layers = [layer for layer in self._layers if layer() is not None]
        layers = [layer for layer in (found() for found in self._layers) if layer is not None]
        layers = [layer for layer in layers if id(layer.weight) in stepped]
        precompute_float8_dynamic_scale_for_fsdp(nn.ModuleList(layers))

    def _add(self, layer: nn.Module) -> None:
        self._layers.append(weakref.ref(layer))
        layer.register_state_dict_post_hook(_store_plain)  # type: ignore[no-untyped-call]
        layer.register_load_state_dict_post_hook(_forget_scale)  # type: ignore[no-untyped-call]


def stored(parameter: torch.Tensor) -> torch.Tensor:
    """Return a parameter without its wrapping, in the same memory."""
    from torchao.float8.fsdp_utils import WeightWithDynamicFloat8CastTensor

    local = parameter._local_tensor if isinstance(parameter, DTensor) else parameter
    if not isinstance(local, WeightWithDynamicFloat8CastTensor):
        return parameter
    return wrap_like(parameter, local._tensor)


def _store_plain(layer: nn.Module, state: dict[str, Any], prefix: str, metadata: Mapping[str, Any]) -> None:
    name = f"{prefix}weight"
    if name in state:
        state[name] = stored(state[name])


def _forget_scale(layer: Any, keys: Any) -> None:
    """Let the scale of loaded values be computed anew."""
    layer.weight._local_tensor._precomputed_scale = None
