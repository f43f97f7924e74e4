"""Gradients of an accumulation that is not complete yet; each rank has its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from accel_backends.sharding.parts import local_part, wrap_like
from accel_state.errors import CheckpointError


def open_gradients(models: Sequence[nn.Module]) -> dict[str, torch.Tensor]:
    """Return the gradients that have been summed so far, under the number of the model and their names.

    Of a sharded one it is the part of this rank.
    """
    return {
        f"{index}.{name}": local_part(parameter.grad)
        for index, model in enumerate(models)
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def restore_gradients(models: Sequence[nn.Module], gradients: Mapping[str, Any]) -> None:
    """Put gradients back; parameters that have none in ``gradients`` have none afterwards.

    Raises:
        CheckpointError: If there is one for a parameter that the models have not, or of another shape.
    """
    parameters = {
        f"{index}.{name}": parameter
        for index, model in enumerate(models)
        for name, parameter in model.named_parameters()
    }
    for name, gradient in gradients.items():
        if name not in parameters or local_part(parameters[name]).shape != gradient.shape:
            raise CheckpointError(
                f"There is a gradient for `{name}`, but no such parameter of that shape. "
                "Load it into the model that it was saved from."
            )
    for name, parameter in parameters.items():
        saved = gradients.get(name)
        if saved is None:
            parameter.grad = None
            continue
        parameter.grad = wrap_like(parameter, saved.clone().to(parameter.device))
