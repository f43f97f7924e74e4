"""Gradients of one big batch from micro-batches and ranks of unequal size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import accel_ops
from accel_state import ConfigError, StateError


@dataclass
class WeightedWindow:
    """How the losses of an accumulation window have been weighted so far.

    Attributes:
        items: Items of this rank's losses.
        num_weighted: Losses with a number of items.
        has_plain: Whether there was a loss without one.
        unit: The number that losses of a longer window are weighted relative to, the same on all ranks.
    """

    items: float | Tensor = 0.0
    num_weighted: int = 0
    has_plain: bool = False
    unit: float | Tensor | None = None


class WeightedLoss:
    """Weighs the mean losses of one accumulation window by how many items each is a mean over.

    With ``n`` items in a micro-batch, ``N`` in the whole window on all ``num_ranks`` ranks, and gradients
    that the strategy averages over these, each micro-batch must count ``n * num_ranks / N``. ``N`` is known
    when the last micro-batch is: a window of one micro-batch agrees on it before backward and scales the
    loss; a longer one weighs losses relative to a number that all ranks share, and corrects the gradients
    once at its end.

    Args:
        num_ranks: Ranks that compute losses of different items, over which gradients are averaged.
        group: These ranks, where they are not all.
        keeps_tensors: Whether one rank computes with counts on their device, without waiting for their values.
            Gradients are NaN then where an error would be raised.
    """

    def __init__(
        self, *, num_ranks: int, group: dist.ProcessGroup | None = None, keeps_tensors: bool = False
    ) -> None:
        self._num_ranks = num_ranks
        self._keeps_tensors = keeps_tensors and num_ranks == 1
        self._group = group
        self.window = WeightedWindow()
        """The state of the weighting. The gradients so far belong to it."""
        self._block: object = None

    def backward(
        self,
        loss: Tensor,
        num_items: float | Tensor,
        *,
        is_last: bool,
        run: Callable[[Tensor], None],
        scale: Callable[[float | Tensor], None],
        block: object = None,
    ) -> None:
        """Run backward of a mean loss with its weight; every rank must call it as often.

        Args:
            loss: A 0-dim tensor, the mean over `num_items` items of this rank.
            num_items: Their number; may be 0 on some ranks (give a loss of 0 that reaches the parameters).
            is_last: Whether this micro-batch ends the window.
            run: Computes gradients of a loss.
            scale: Multiplies the complete gradients, in a window of several micro-batches.
            block: The models of the `accumulate` block, as a tuple made for it; empty outside of such a block.

        Raises:
            ConfigError: If `num_items` is negative or not finite.
            StateError: If the window has no item at all, or a loss without a count, or if it is the second in
                a micro-batch of a longer window.
        """
        window = self.window
        if self._keeps_tensors and isinstance(num_items, Tensor) and num_items.device == loss.device:
            wide = num_items.detach().to(torch.float64)
            count: float | Tensor = torch.where(wide >= 0, wide, math.nan)
        else:
            count = check_count(num_items)
        if window.has_plain:
            self._refuse_mixture()
        if block and block is self._block:
            self._refuse_second()
        if is_last and not window.num_weighted:
            run(_weighted(loss, count * self._num_ranks / self._agree(count)))
            return
        self._block = block
        if window.unit is None:
            window.unit = count.clamp(min=1) if isinstance(count, Tensor) else self._total(count) or 1.0
        window.num_weighted += 1
        window.items += count
        run(_weighted(loss, count / window.unit))
        if is_last:
            scale(window.unit * self._num_ranks / self._agree(window.items))
            self.window = WeightedWindow(unit=window.unit)

    def pass_by(self, *, is_last: bool) -> None:
        """Record a backward without a count.

        Raises:
            StateError: If the window has losses with one.
        """
        self.window.has_plain = not is_last
        if self.window.num_weighted:
            self._refuse_mixture()

    def _refuse_mixture(self) -> None:
        self.reset()
        raise StateError(
            "This accumulation has a `backward` with `num_items` and one without. "
            "Give `num_items` in every micro-batch, or in none."
        )

    def _refuse_second(self) -> None:
        self.reset()
        raise StateError(
            "This `accumulate` block has a second `backward` with `num_items`, whose items would count as if they "
            "belonged to the first loss. Add the losses up, weighted as you like, and call `backward` once."
        )

    def reset(self) -> None:
        """Start a new window; the unit stays, since any number works that all ranks share."""
        self.window = WeightedWindow(unit=self.window.unit)
        self._block = None

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue the window with the attributes of a `WeightedWindow`; those that are missing have their default."""
        unit = state.get("unit")
        self.window = WeightedWindow(
            items=float(state.get("items", 0.0)),
            num_weighted=int(state.get("num_weighted", 0)),
            has_plain=bool(state.get("has_plain", False)),
            unit=None if unit is None else float(unit),
        )
        self._block = None

    def _total(self, count: float) -> float:
        if self._num_ranks == 1:
            return count
        if self._group is None:
            return math.fsum(accel_ops.gather_object([count]))  # not every device has float64
        of_rank = [0.0] * self._num_ranks
        dist.all_gather_object(of_rank, count, group=self._group)
        return math.fsum(of_rank)

    def _agree(self, count: float | Tensor) -> float | Tensor:
        if isinstance(count, Tensor):
            return count
        total = self._total(count)
        if total == 0:
            raise StateError(
                "`num_items` is 0 in all micro-batches of all ranks: there is nothing to average. "
                "Leave such a batch out."
            )
        return total


def check_count(num_items: float | Tensor) -> float:
    """Return `num_items` as a float.

    Raises:
        ConfigError: If it is negative or not finite.
    """
    count = float(num_items)
    if not math.isfinite(count) or count < 0:
        raise ConfigError(f"`num_items` must be a finite number from 0 up, got {count:g}.")
    return count


def _weighted(loss: Tensor, weight: float | Tensor) -> Tensor:
    return loss * (weight.to(loss.dtype) if isinstance(weight, Tensor) else weight)
