"""Notices gradients that DDP leaves unaveraged, and warns when an optimizer steps them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accel_backends.unwrap import innermost
from accel_state.user_warnings import warn_user

_NOBODY: frozenset[int] = frozenset()


class UnaveragedGradientsWarning(UserWarning):
    """An optimizer steps gradients that DDP did not average over the ranks, so each rank trains its own weights."""


class BackwardTrack:
    """Whether the gradients of a model are averaged, as far as one of its parameters can tell.

    DDP averages in the first backward that follows a forward of its own, and in no other.

    Args:
        watched: The parameter whose gradient tells of each backward; None: no parameter can.
    """

    def __init__(self, watched: nn.Parameter | None) -> None:
        self.watched = watched
        self.is_due = False
        self.is_missed = False
        self.stepped_since_forward = _NOBODY
        if watched is not None:
            watched.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Note that DDP prepared for a backward, whether it averages or `no_sync` asked it not to."""
        # Written, never read: compiled code that has a DDP inside guards none of it.
        self.is_due = True
        self.stepped_since_forward = _NOBODY

    def _accumulated(self, parameter: torch.Tensor) -> None:
        self.is_missed = not self.is_due
        self.is_due = False


class TrackedDDP(DistributedDataParallel):
    """`DistributedDataParallel` with a `BackwardTrack`."""

    def __init__(self, module: nn.Module, **options: Any) -> None:
        super().__init__(module, **options)
        # The first, which is the nearest to the input: most losses reach it. With a static graph one backward may
        # add to a gradient several times.
        trained = (parameter for parameter in module.parameters() if parameter.requires_grad)
        self.track = BackwardTrack(None if self.static_graph else next(trained))

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the model, and prepare for the backward. Communicates as `DistributedDataParallel` does."""
        if torch.is_grad_enabled():
            self.track.begin()
        return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]


class _Stepped(NamedTuple):
    """What an optimizer steps of a model."""

    model: weakref.ref[TrackedDDP]
    track: BackwardTrack
    parameters: Sequence[torch.Tensor]
    has_watched: bool

    def is_unaveraged(self, is_forward_missing: bool) -> bool:
        """Whether there are gradients that a backward without DDP left here: no zeros, no leftovers of other steps."""
        model, track = self.model(), self.track
        if model is None or not model.require_backward_grad_sync:
            return False  # within `no_sync` ranks step for themselves on purpose, as LocalSGD does
        if self.has_watched and track.watched is not None and _has_gradient(track.watched):
            return track.is_missed
        return is_forward_missing and any(_has_gradient(parameter) for parameter in self.parameters)


class AveragingCheck:
    """Warns, once, if an optimizer is about to step gradients of a `TrackedDDP` that nobody averaged.

    Local: it asks no other rank, and looks at gradients only where something seems wrong.

    Args:
        models: The models that are prepared; there may be more later.
    """

    def __init__(self, models: Iterable[TrackedDDP]) -> None:
        self._models = models
        self._stepped: list[_Stepped] = []
        self._num_groups = 0
        self._has_warned = False

    def __call__(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at what ``optimizer`` will step."""
        if self._has_warned:
            return
        if len(optimizer.param_groups) != self._num_groups:
            self._find(optimizer)
        for stepped in self._stepped:
            track = stepped.track
            is_forward_missing = id(self) in track.stepped_since_forward
            track.stepped_since_forward |= {id(self)}
            if (track.is_missed or is_forward_missing) and stepped.is_unaveraged(is_forward_missing):
                self._has_warned = True
                _warn(stepped, optimizer)

    def _find(self, optimizer: torch.optim.Optimizer) -> None:
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self._num_groups = len(optimizer.param_groups)
        found = (
            (model, [parameter for parameter in model.parameters() if id(parameter) in own])
            for model in self._models
        )
        self._stepped = [
            _Stepped(weakref.ref(model), model.track, parameters, id(model.track.watched) in own)
            for model, parameters in found
            if parameters
        ]


def _has_gradient(parameter: torch.Tensor) -> bool:
    return parameter.grad is not None and bool(parameter.grad.norm() != 0)


def _warn(stepped: _Stepped, optimizer: torch.optim.Optimizer) -> None:
    model = stepped.model()
    assert model is not None
    name = type(innermost(model)).__name__
    warn_user(
        f"This {type(optimizer).__name__} steps gradients of `{name}` that were not averaged over the ranks, so the "
        "ranks train different weights. Gradients are averaged in the first backward after a call of the prepared "
        "model, and in no other. Compute the loss by calling the prepared model, not `unwrap_model(model)`, "
        "`model.module` or another method than `forward`; call `backward` once for all losses of a call.",
        UnaveragedGradientsWarning,
        main_process_only=False,
    )
