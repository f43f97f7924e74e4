"""Bytes of a forward pass: activations saved for the backward pass, and the KV cache of generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from accel_bigmodel.tensors.dtypes import dtype_byte_size
from accel_state.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes of one forward pass: saved for the backward pass, of the output, and of the largest saved tensor."""

    kept: int
    output: int
    largest: int

    @property
    def peak(self) -> int:
        """Bytes at the start of the backward pass: saved tensors, and the input and output gradients of one layer."""
        return self.kept + self.output + 2 * self.largest


def measure_activations(model: nn.Module, inputs: dict[str, Any] | tuple[Any, ...]) -> Activations:
    """Return what a forward pass on the meta device saves for the backward pass, weights excluded.

    Args:
        model: A model on the meta device, in the mode (training or not) in which it will run.
        inputs: Arguments of the forward pass, on the meta device.
    """
    model = model.to("meta")
    weights = {t.untyped_storage()._cdata for t in [*model.parameters(), *model.buffers()]}
    kept: dict[int, int] = {}
    held: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes()
            held.append(tensor)  # so that no address is reused while we count
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.enable_grad():
        output = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    found = [leaf for leaf in _tensors(output) if leaf.untyped_storage()._cdata not in kept]
    return Activations(sum(kept.values()), sum(leaf.nbytes for leaf in found), max(kept.values(), default=0))


def _tensors(output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output]
    items = (
        output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else ()
    )
    return [leaf for item in items for leaf in _tensors(item)]


def example_inputs(
    model: nn.Module, *, batch_size: int, sequence_length: int
) -> dict[str, Any] | tuple[Any, ...]:
    """Return arguments for a forward pass of ``model`` on the meta device.

    A model may provide them with a method ``example_inputs(batch_size, sequence_length)``. Otherwise models with an
    embedding get token ids, convolutional models images, and others rows for their first linear layer.

    Raises:
        ConfigError: If none of this applies.
    """
    own: Any = getattr(model, "example_inputs", None)
    if callable(own):
        with torch.device("meta"):
            given = own(batch_size, sequence_length)
        return given if isinstance(given, dict | tuple) else (given,)
    layers = list(model.modules())
    if any(isinstance(layer, nn.Embedding) for layer in layers):
        tokens = torch.zeros(batch_size, sequence_length, dtype=torch.long, device="meta")
        return {"input_ids": tokens} if getattr(model, "main_input_name", "") == "input_ids" else (tokens,)
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            return (torch.empty(batch_size, layer.in_channels, 224, 224, device="meta"),)
        if isinstance(layer, nn.Linear):
            return (torch.empty(batch_size, layer.in_features, device="meta"),)
    raise ConfigError(
        f"The inputs of `{type(model).__name__}` cannot be derived. Give it a method "
        "`example_inputs(batch_size, sequence_length)`."
    )


def kv_cache_bytes(config: Any, *, batch_size: int, sequence_length: int, dtype: str) -> int | None:
    """Return the bytes of the KV cache for a batch of sequences, ``None`` if the config describes no attention.

    Args:
        config: The config of a transformers model.
        batch_size: Number of sequences.
        sequence_length: Tokens per sequence, prompt and completion together.
        dtype: The dtype of the cache.
    """
    config = getattr(config, "text_config", config)
    layers = getattr(config, "num_hidden_layers", None) or getattr(config, "n_layer", None)
    heads = getattr(config, "num_attention_heads", None) or getattr(config, "n_head", None)
    width = getattr(config, "hidden_size", None) or getattr(config, "n_embd", None)
    if not layers or not heads or not width:
        return None
    head_dim = getattr(config, "head_dim", None) or width // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * layers * kv_heads * head_dim * batch_size * sequence_length * dtype_byte_size(dtype))
