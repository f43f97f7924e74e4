"""How a precision computes: the arguments of `torch.autocast` and of the gradient scaler."""

from __future__ import annotations

from dataclasses import dataclass

from accel_state.kwargs_handler import KwargsHandler


@dataclass
class AutocastKwargs(KwargsHandler):
    """Customises the `torch.autocast` that mixed precision puts around the forward pass.

    Attributes:
        enabled: Whether operations are cast at all.
        cache_enabled: Whether the casts of weights are kept within one autocast region; None leaves torch's
            choice.
    """

    enabled: bool = True
    cache_enabled: bool | None = None


@dataclass
class GradScalerKwargs(KwargsHandler):
    """Customises the gradient scaler of fp16 training.

    Attributes:
        init_scale: The factor that the first loss is multiplied with.
        growth_factor: What the scale is multiplied with after ``growth_interval`` good steps in a row.
        backoff_factor: What the scale is multiplied with after a step whose gradients overflowed.
        growth_interval: Number of good steps after which a larger scale is tried.
        enabled: Whether the loss is scaled at all.
    """

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    enabled: bool = True
