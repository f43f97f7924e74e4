"""Keyword arguments for the torch objects that accel builds, one handler per object."""

from accel_state.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "AORecipeKwargs": "accel_backends.handlers.fp8",
        "AutocastKwargs": "accel_backends.handlers.autocast",
        "DistributedDataParallelKwargs": "accel_backends.handlers.ddp",
        "FP8RecipeKwargs": "accel_backends.handlers.fp8",
        "GradScalerKwargs": "accel_backends.handlers.grad_scaler",
        "MSAMPRecipeKwargs": "accel_backends.handlers.fp8",
        "ProfileKwargs": "accel_backends.handlers.profile",
        "TERecipeKwargs": "accel_backends.handlers.fp8",
        "collect": "accel_backends.handlers.collection",
    },
)
