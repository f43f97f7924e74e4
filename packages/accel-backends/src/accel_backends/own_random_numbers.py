"""Random numbers in which ranks differ while they compute parts of the same samples, and otherwise do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from accel_backends.wrapped_forward import WrappedForward
from accel_state.devices import device_backend_of


@contextmanager
def own_random_numbers(number: int, device: torch.device) -> Iterator[None]:
    """Let the generator of ``device`` draw numbers in the block in which ranks of another ``number`` differ.

    Ranks that had the same state before have the same state after it, however much each has drawn. The numbers are a
    function of the state before and of ``number``, so nothing more than that state must be saved.

    Args:
        number: Of this rank among those that must differ.
        device: What the block computes on.
    """
    seed = int(torch.randint(2**62, (), device="cpu")) + number
    backend = device_backend_of(device)
    state = backend.get_rng_state()
    backend.set_rng_state(torch.Generator(device).manual_seed(seed).get_state())
    try:
        yield
    finally:
        backend.set_rng_state(state)


class OwnRandomNumbersForward(WrappedForward):
    """A forward that drops out other values than it does on ranks of another ``number``; see `own_random_numbers`."""

    def __init__(self, original: Callable[..., Any], *, number: int, device: torch.device) -> None:
        super().__init__(original)
        self.number = number
        self.device = device

    @torch.compiler.disable(recursive=False)  # type: ignore[no-untyped-call,untyped-decorator]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with own_random_numbers(self.number, self.device):
            return self.original(*args, **kwargs)


def draw_own_numbers(model: nn.Module, *, number: int, device: torch.device) -> None:
    """Let the forward of ``model`` draw other random numbers than on ranks of another ``number``."""
    model.forward = OwnRandomNumbersForward(model.forward, number=number, device=device)
