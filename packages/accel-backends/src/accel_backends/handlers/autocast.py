"""How the forward pass is cast: the arguments of `torch.autocast` that are a matter of taste."""

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
