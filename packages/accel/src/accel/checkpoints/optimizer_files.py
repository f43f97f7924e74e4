"""Copy the state in a checkpoint into an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from accel.checkpoints.prepared import Prepared
from accel_backends.checkpoint_formats.optimizer_state import misfit_of, without_file
from accel_backends.checkpoint_formats.protocol import CheckpointFormat


@dataclass(frozen=True)
class OptimizerFiles:
    """The files of one optimizer in a checkpoint, and the optimizer that they are for.

    Attributes:
        prepared: The objects of the run.
        optimizer: The prepared optimizer.
        form: The format of the files.
        index: Which optimizer it is.
    """

    prepared: Prepared
    optimizer: torch.optim.Optimizer
    form: CheckpointFormat
    index: int

    def read(self, folder: Path) -> Mapping[str, Any]:
        """Return the state, as the format gives it."""
        strategy, inner = self.prepared.strategy, self._inner
        parameters: Callable[[], Mapping[str, Any]] = partial(
            strategy.optimizer_parameters, inner, self.prepared.models
        )
        if self.form.is_per_rank:
            parameters = partial(strategy.own_optimizer_state, inner)
        return self.form.read_optimizer(folder, parameters, index=self.index)

    def misfit_of(self, state: Mapping[str, Any]) -> str | None:
        """Say why a state does not belong to the optimizer, None if it seems to."""
        if self.form.is_per_rank:
            return None  # found out while it was read
        return misfit_of(self._inner, state, self.prepared.strategy.optimizer_shapes(self._inner))

    def load(self, state: Mapping[str, Any]) -> None:
        """Copy the state into the optimizer."""
        is_copied = self.prepared.strategy.capabilities.copies_loaded_states
        own = state if is_copied else without_file(self._inner, state)
        if self.form.is_per_rank:
            self.optimizer.load_state_dict(dict(own))
            return
        model = self.prepared.model_of(self.optimizer)
        self.prepared.strategy.load_optimizer_state(self.optimizer, own, model)

    @property
    def _inner(self) -> torch.optim.Optimizer:
        return self.prepared.strategy.bare_optimizer(self.optimizer)
