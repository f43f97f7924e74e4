"""Gradients of an accumulation that is not complete yet; each rank has its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from accel_state.errors import CheckpointError


class OpenGradients:
    """Takes and restores them for checkpoints. Here they are those of the parameters, sharded like them."""

    def take(self, models: Sequence[nn.Module]) -> dict[str, torch.Tensor]:
        """Return the gradients that have been summed so far, under the number of the model and their names.

        Of a sharded one it is the part of this rank.
        """
        from accel_checkpoint.pieces import local_part  # imports `DTensor`, which takes long

        return {
            f"{index}.{name}": local_part(parameter.grad)
            for index, model in enumerate(models)
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }

    def restore(self, models: Sequence[nn.Module], gradients: Mapping[str, Any]) -> None:
        """Restore the result of `take`; parameters that have no gradient in it have none afterwards.

        Raises:
            CheckpointError: If there is one for a parameter that the models have not, or of another shape.
        """
        from accel_checkpoint.pieces import local_part, wrap_like

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
