"""Keyword arguments for the torch objects that accel builds, one handler per object."""

from accel_state.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "AutocastKwargs": "accel_backends.handlers.autocast",
        "DistributedDataParallelKwargs": "accel_backends.handlers.ddp",
        "GradScalerKwargs": "accel_backends.handlers.grad_scaler",
        "ProfileKwargs": "accel_backends.handlers.profile",
        "collect": "accel_backends.handlers.collection",
    },
)
