"""Move data between ranks and devices; accel-ops and accel-data do the work."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

import accel_data
import accel_ops
from accel.configuration import RunConfiguration


class DataMoving:
    """Collectives over nested data, and the settings of the prepared loaders."""

    configuration: RunConfiguration

    @property
    def split_batches(self) -> bool:
        """Whether a loader's batch size is that of all ranks together."""
        return self.configuration.loader.split_batches

    @property
    def dispatch_batches(self) -> bool | None:
        """Whether rank 0 alone reads and hands out batches; None: for iterable data sets only."""
        return self.configuration.loader.dispatch_batches

    @property
    def even_batches(self) -> bool:
        """Whether the last batches are filled up so that every rank has as many."""
        return self.configuration.loader.even_batches

    @even_batches.setter
    def even_batches(self, value: bool) -> None:
        self.configuration.loader.even_batches = value

    @property
    def use_seedable_sampler(self) -> bool:
        """Whether shuffling is by a sampler whose order is a function of seed and epoch alone."""
        return self.configuration.loader.use_seedable_sampler

    @property
    def non_blocking(self) -> bool:
        """Whether batches are copied to the device without waiting for the copy."""
        return self.configuration.loader.non_blocking

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether loaders are torchdata's, which know their own position."""
        return self.configuration.loader.use_stateful_dataloader

    def gather(self, tensor: Any) -> Any:
        """Return the tensors of all ranks, joined along dimension 0, on every rank.

        Args:
            tensor: A tensor ``(n, *)`` or nested data of such; a 0-dim tensor counts as ``(1,)``. Shapes and
                structure must be the same on every rank.
        """
        return accel_ops.gather(tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Gather, and drop what the last batch repeated to be even: exactly the samples of the data set.

        Args:
            input_data: Tensors ``(batch, *)`` or nested data of such; any objects with `use_gather_object`.
            use_gather_object: Gather pickled objects rather than tensors.
        """
        return accel_data.gather_for_metrics(input_data, use_gather_object=use_gather_object)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Return the sum or mean over all ranks, times `scale`, on every rank.

        Args:
            tensor: A tensor, or nested data of tensors, of the same shapes on every rank.
            reduction: `sum`, `mean` or `none`.
            scale: Factor put on the result.
        """
        return accel_ops.reduce(tensor, reduction=reduction, scale=scale)

    def pad_across_processes(
        self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False
    ) -> Any:
        """Pad along `dim` to the largest size on any rank, so that the result can be gathered."""
        return accel_ops.pad_across_processes(tensor, dim=dim, pad_index=pad_index, pad_first=pad_first)

    def skip_first_batches(self, dataloader: DataLoader[Any], num_batches: int = 0) -> Any:
        """Return a loader that starts `num_batches` later, as for going on in the middle of an epoch."""
        return accel_data.skip_first_batches(dataloader, num_batches=num_batches)
