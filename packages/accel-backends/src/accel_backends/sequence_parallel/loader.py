"""A loader of this rank's part of every sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from accel_backends.sequence_parallel.batches import (
    check_length,
    missing_tokens,
    padded_batch,
    part_of_batch,
    whole_batch,
)
from accel_backends.sequence_parallel.cut import SequenceCut
from accel_state.user_warnings import warn_user


class SequencePart:
    """A prepared loader, of which each rank gets its part of every sequence; else it is that loader.

    Args:
        loader: Yields the same dicts on all ranks that share sequences, with ``input_ids`` and ``labels``.
        cut: How sequences are cut.
        setting: The name of the setting that shares them, for errors.
        pads: Pad sequences that cannot be cut, rather than refuse them.
        check: Called with each whole batch; raises what is wrong with it.
        is_active: Called before each batch; where it returns False, sequences stay full.
        during: Called with the tokens of its sequences, with and without that padding, and the tensors that were
            cut; the context in which the batch is used.
    """

    def __init__(
        self,
        loader: Any,
        *,
        cut: SequenceCut,
        setting: str,
        pads: bool = False,
        check: Callable[[Mapping[str, Any]], None] | None = None,
        is_active: Callable[[], bool] = lambda: True,
        during: Callable[..., AbstractContextManager[Any]] = lambda *_: nullcontext(),
    ) -> None:
        self.loader = loader
        self._cut = cut
        self._setting = setting
        self._pads = pads
        self._check = check
        self._is_active = is_active
        self._during = during
        self._has_told = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["loader"], name)

    def __len__(self) -> int:
        return len(self.loader)

    def skipping(self, num_batches: int) -> SequencePart:
        """Return the same without the first ``num_batches`` batches of each epoch."""
        return SequencePart(
            self.loader.skipping(num_batches),
            cut=self._cut,
            setting=self._setting,
            pads=self._pads,
            check=self._check,
            is_active=self._is_active,
            during=self._during,
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.loader:
            whole = whole_batch(batch)
            if not self._is_active():
                yield whole
                continue
            if self._check is not None:
                self._check(whole)
            num_real = whole["input_ids"].shape[1]
            num_missing = missing_tokens(num_real, self._cut)
            if num_missing and self._pads:
                self._tell(num_real, num_missing)
                whole = padded_batch(whole, num_missing)
            else:
                check_length(num_real, self._cut, setting=self._setting)
            part = part_of_batch(whole, self._cut)
            cut = [part[name] for name in part if part[name] is not whole[name]]
            with self._during(whole["input_ids"].shape[1], num_real, cut):
                yield part

    def _tell(self, length: int, num_missing: int) -> None:
        if self._has_told:
            return
        self._has_told = True
        warn_user(
            f"Sequences of {length} tokens cannot be shared by {self._cut.size} ranks (`{self._setting}`), so "
            f"{num_missing} tokens are appended, which no other token sees and no loss counts. Pad them to a multiple "
            f"of {self._cut.num_chunks} to save this; said once for each loader.",
            main_process_only=False,
        )
