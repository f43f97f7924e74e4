"""One process, one device: nothing is wrapped and nothing is reduced."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from accel_backends.precisions.protocol import PairsOptimizers
from accel_backends.strategies.bundle import Bundle, Placement
from accel_backends.strategies.placement import place_model
from accel_backends.strategies.protocol import Capabilities
from accel_backends.strategies.torch_strategy import TorchStrategy
from accel_state.errors import ConfigError


class SingleStrategy(TorchStrategy):
    """The strategy `single`."""

    name: ClassVar[str] = "single"
    capabilities: ClassVar[Capabilities] = Capabilities(takes_exchanged_layers=True, needs_collectives=False)

    def prepare(
        self, bundle: Bundle, *, device_placement: Placement | None = None, evaluation_mode: bool = False
    ) -> Bundle:
        """Return the prepared objects in the same order."""
        precision = self.context.precision
        if isinstance(precision, PairsOptimizers) and bundle.models:
            bundle = self._paired(bundle, precision)
        return super().prepare(bundle, device_placement=device_placement, evaluation_mode=evaluation_mode)

    def _paired(self, bundle: Bundle, precision: PairsOptimizers) -> Bundle:
        """Return the bundle with its model and optimizer converted together.

        Raises:
            ConfigError: If there is not one of each.
        """
        if len(bundle.models) != 1 or len(bundle.optimizers) != 1:
            raise ConfigError(
                f"`mixed_precision={self.context.precision.name}` converts a model together with its optimizer, but "
                f"this call has {len(bundle.models)} models and {len(bundle.optimizers)} optimizers. Prepare "
                "one of each."
            )
        model = place_model(bundle.models[0], self.context.device)
        given = bundle.optimizers[0]
        model, optimizer = precision.pair(model, given)
        for scheduler in bundle.schedulers:
            if getattr(scheduler, "optimizer", None) is given:
                scheduler.optimizer = optimizer
        return replace(bundle, models=[model], optimizers=[optimizer])
