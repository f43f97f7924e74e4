"""Which sequences the ranks share now."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from accel_backends.sequences.batches import check_length
from accel_backends.sequences.cut import SequenceCut
from accel_backends.sequences.tokens import SharedTokens
from accel_state.errors import ConfigError, StateError


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    tokens: SharedTokens | None
    is_bound: bool


class SequenceSharing:
    """The ranks that share sequences, and those of the batch that is being computed.

    Args:
        cut: How sequences are cut.
        group: The ranks.
        setting: The name of the setting that shares them, for errors.
    """

    def __init__(self, cut: SequenceCut, group: dist.ProcessGroup, *, setting: str) -> None:
        self.cut = cut
        self.setting = setting
        self._group = group
        self._batches: list[_Batch] = []
        self._has_told = False

    @property
    def tokens(self) -> SharedTokens | None:
        """The sequences of the batch, None where none are shared: each rank computes whole ones."""
        return self._batches[-1].tokens if self._batches else None

    @property
    def is_bound(self) -> bool:
        """Whether these are the sequences of the forward pass that runs, be it for the second time."""
        return bool(self._batches) and self._batches[-1].is_bound

    @contextmanager
    def using(self, tokens: SharedTokens | None, *, is_bound: bool = False) -> Iterator[None]:
        """Share the sequences of ``tokens`` in the block; None: none are shared."""
        entry = _Batch(tokens, is_bound)
        self._batches.append(entry)
        try:
            yield
        finally:
            # Not the last one, where two loaders are read in turn.
            self._batches = [one for one in self._batches if one is not entry]

    def during(self, num_tokens: int, num_real: int) -> AbstractContextManager[None]:
        """Share sequences of ``num_tokens`` in the block, of which ``num_real`` are no padding of ours."""
        return self.using(SharedTokens(self.cut, self._group, num_tokens=num_tokens, num_real=num_real))

    def bound(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that does what ``function`` would do now, whatever is shared then."""
        tokens = self.tokens

        def run(*args: Any, **kwargs: Any) -> Any:
            with self.using(tokens, is_bound=True):
                return function(*args, **kwargs)

        return run

    def tell_of_whole_sequences(self) -> None:
        """Warn, once, that a model is trained on sequences which ranks do not share."""
        if not self._has_told:
            self._has_told = True
            warnings.warn(
                f"`{self.setting}` is {self.cut.size}, but a model is trained on whole sequences, which each of these "
                "ranks computes for itself. Cut them in `maybe_context_parallel`, or let prepared loaders cut them: "
                "`cp_handler=TorchContextParallelConfig(cuts_batches=True)` in `ParallelismConfig`.",
                stacklevel=3,
            )

    @contextmanager
    def cutting(
        self, buffers: Sequence[Tensor], dims: Sequence[int], no_restore: Set[Tensor]
    ) -> Iterator[None]:
        """Let ``buffers`` be this rank's part of themselves in the block, in which sequences are shared.

        Args:
            buffers: Tensors that hold whole sequences, of one length.
            dims: Dimension of the tokens in each.
            no_restore: Those that need not be whole again after the block.

        Raises:
            ConfigError: If there is not one dimension for each, or they cannot be cut.
            StateError: If sequences are shared already, as in a loop over a loader that cuts batches.
        """
        if not buffers:
            yield
            return
        length = self._length_of(buffers, dims)
        wholes = [buffer.data for buffer in buffers]
        for buffer, dim in zip(buffers, dims, strict=True):
            buffer.data = self.cut.part_of(buffer.data, dim)
        try:
            with self.during(length, length):
                yield
        finally:
            for buffer, whole in zip(buffers, wholes, strict=True):
                if buffer not in no_restore:
                    buffer.data = whole

    def _length_of(self, buffers: Sequence[Tensor], dims: Sequence[int]) -> int:
        if self.tokens is not None:
            raise StateError(
                "`maybe_context_parallel` was called where sequences are cut already: in another such block, or in a "
                "loop over a loader that cuts batches (`cuts_batches`). Leave out one of them."
            )
        if len(buffers) != len(dims):
            raise ConfigError(
                f"`buffer_seq_dims` has {len(dims)} entries for {len(buffers)} `buffers`. Give one for each."
            )
        lengths = [buffer.shape[dim] for buffer, dim in zip(buffers, dims, strict=True)]
        if len(set(lengths)) > 1:
            raise ConfigError(
                f"`buffers` have sequences of {', '.join(map(str, lengths))} tokens, which are cut in the same places "
                "only if they are as long. Cut longer ones to the tokens of this batch first."
            )
        check_length(lengths[0], self.cut, setting=self.setting)
        return lengths[0]
