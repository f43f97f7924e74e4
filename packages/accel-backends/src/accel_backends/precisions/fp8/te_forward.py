"""The forward of a model in the 8 bits of Transformer Engine, in training and, where asked for, in evaluation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from accel_backends.activation_checkpointing import recomputed_within
from accel_backends.handlers.fp8 import TERecipeKwargs
from accel_backends.precisions.fp8.te_package import transformer_engine
from accel_backends.precisions.fp8.te_recipes import make_recipe
from accel_backends.wrapped_forward import WrappedForward


class ScaledForward(WrappedForward):
    """A forward whose layers of Transformer Engine compute in 8 bits.

    Args:
        original: The forward to run.
        model: Whose mode says whether this is training.
        recipe: How tensors are scaled.
        use_during_eval: Compute in 8 bits in evaluation too.
    """

    is_traceable = False  # torch traces no change of the library's state

    def __init__(
        self, original: Callable[..., Any], model: nn.Module, *, recipe: Any, use_during_eval: bool
    ) -> None:
        super().__init__(original)
        self.model = model
        self.recipe = recipe
        self.use_during_eval = use_during_eval
        self._autocast = transformer_engine().autocast

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        enabled = self.use_during_eval or self.model.training
        with recomputed_within(lambda forward: functools.partial(self._run, forward, enabled)):
            return self._run(self.original, enabled, *args, **kwargs)

    def _run(self, forward: Callable[..., Any], enabled: bool, /, *args: Any, **kwargs: Any) -> Any:
        with self._autocast(enabled=enabled, recipe=self.recipe):
            return forward(*args, **kwargs)


def contextual_fp8_autocast(
    model_forward: Callable[..., Any], fp8_recipe: Any, use_during_eval: bool = False
) -> Callable[..., Any]:
    """Return a forward to be bound to a model, which computes in 8 bits while that model is in training.

    Args:
        model_forward: The bound forward to run.
        fp8_recipe: A recipe of Transformer Engine.
        use_during_eval: Compute in 8 bits in evaluation too.
    """

    @functools.wraps(model_forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        scaled = ScaledForward(model_forward, self, recipe=fp8_recipe, use_during_eval=use_during_eval)
        return scaled(*args, **kwargs)

    return forward


def apply_fp8_autowrap(model: nn.Module, fp8_recipe_handler: TERecipeKwargs | None) -> nn.Module:
    """Return ``model``, whose forward computes in 8 bits as the handler says; wrapped already, it stays as it is.

    Raises:
        ConfigError: If a setting of the handler has no effect.
    """
    settings = fp8_recipe_handler or TERecipeKwargs()
    if not _is_wrapped(model):
        model.forward = ScaledForward(
            model.forward,
            model,
            recipe=make_recipe(settings),
            use_during_eval=bool(settings.use_autocast_during_eval),
        )
    return model


def _is_wrapped(model: nn.Module) -> bool:
    forward = model.__dict__.get("forward")
    while isinstance(forward, WrappedForward):
        if isinstance(forward, ScaledForward):
            return True
        forward = forward.original
    return False
