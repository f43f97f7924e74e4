"""Which sequences the ranks share now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from accel_backends.sequence_parallel.batches import check_length
from accel_backends.sequence_parallel.cut import SequenceCut
from accel_backends.sequence_parallel.tokens import Exchange, SharedTokens
from accel_ops.nested.describe import iterate_tensors
from accel_ops.shared_tensors import id_tensor_storage
from accel_state.errors import ConfigError, StateError
from accel_state.user_warnings import warn_user


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """The sequences of a batch, or those that a forward pass computes with.

    Attributes:
        tokens: They; None: none are shared.
        parts: The tensors of the batch that were cut; None in a forward pass.
        is_bound: Whether the forward pass may run for the second time.
    """

    tokens: SharedTokens | None
    parts: tuple[Tensor, ...] | None = None
    is_bound: bool = False


class SequenceSharing:
    """The ranks that share sequences, and those of the batch that is being computed.

    Args:
        cut: How sequences are cut.
        group: The ranks.
        setting: The name of the setting that shares them, for errors.
        exchange: What the ranks exchange to compute attention.
    """

    def __init__(
        self,
        cut: SequenceCut,
        group: dist.ProcessGroup,
        *,
        setting: str,
        exchange: Exchange = Exchange.KEYS,
    ) -> None:
        self.cut = cut
        self.setting = setting
        self._exchange = exchange
        self._group = group
        self._batches: list[_Batch] = []
        self._has_told = False

    @property
    def tokens(self) -> SharedTokens | None:
        """The sequences of the forward pass, None where none are shared: each rank computes whole ones.

        Raises:
            StateError: If sequences are shared, and no model was called with parts of them.
        """
        if self._batches and self._batches[-1].parts is not None:
            raise StateError(
                f"A module inside of a model was called where sequences are shared (`{self.setting}`), and nobody "
                "knows which tokens it was given. Call the model that `prepare` returned."
            )
        return self._batches[-1].tokens if self._batches else None

    def tokens_of(self, given: Any, *, kind: str) -> SharedTokens | None:
        """Return the sequences that a model computes with; None where none are shared.

        Args:
            given: What it is called with, nested at will: among it a tensor that was cut, or a view of one.
            kind: What the model is called, for errors.

        Raises:
            StateError: If sequences are shared, and these are no parts of them, or nobody knows.
        """
        if not self._batches or self._batches[-1].parts is None:
            return self.tokens
        memory = {id_tensor_storage(tensor) for tensor in iterate_tensors(given)}
        for batch in reversed(self._batches):
            if any(id_tensor_storage(part) in memory for part in batch.parts or ()):
                return batch.tokens
        raise StateError(
            f"The {kind} was called with tensors that are no part of the batch whose sequences are shared now "
            f"(`{self.setting}`), so nobody knows where their tokens stand. Compute other sequences outside of the "
            "loop or the block in which batches are cut. If these were made of the batch, pass another tensor of it "
            "with them, such as its `position_ids` or `attention_mask`."
        )

    @property
    def is_bound(self) -> bool:
        """Whether these are the sequences of the forward pass that runs, be it for the second time."""
        return bool(self._batches) and self._batches[-1].is_bound

    @contextmanager
    def using(
        self,
        tokens: SharedTokens | None,
        *,
        parts: Sequence[Tensor] | None = None,
        is_bound: bool = False,
    ) -> Iterator[None]:
        """Share the sequences of ``tokens`` in the block; None: none are shared.

        Without ``parts``, the tensors that were cut, it is a forward pass that computes with them.
        """
        entry = _Batch(tokens, None if parts is None else tuple(parts), is_bound)
        self._batches.append(entry)
        try:
            yield
        finally:
            # Not the last one, where two loaders are read in turn.
            self._batches = [one for one in self._batches if one is not entry]

    def during(self, num_tokens: int, num_real: int, parts: Sequence[Tensor]) -> AbstractContextManager[None]:
        """Share sequences of ``num_tokens`` in the block, of which ``num_real`` are no padding of ours.

        ``parts`` are the tensors that hold this rank's part of them.
        """
        tokens = SharedTokens(
            self.cut, self._group, num_tokens=num_tokens, num_real=num_real, exchange=self._exchange
        )
        return self.using(tokens, parts=parts)

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
            warn_user(
                f"`{self.setting}` is {self.cut.size}, but a model is trained on whole sequences, which each of these "
                "ranks computes for itself. Cut them in `maybe_context_parallel`, or let prepared loaders cut them: "
                "`cp_handler=TorchContextParallelConfig(cuts_batches=True)` in `ParallelismConfig`.",
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
            with self.during(length, length, buffers):
                yield
        finally:
            for buffer, whole in zip(buffers, wholes, strict=True):
                if buffer not in no_restore:
                    buffer.data = whole

    def _length_of(self, buffers: Sequence[Tensor], dims: Sequence[int]) -> int:
        if self._batches:
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
