"""Sequence parallelism (Ulysses): ranks share each sequence, and attention exchanges it for a part of the heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from accel_backends.own_random_numbers import draw_own_numbers
from accel_backends.plugins.deepspeed.config_tree import value_of
from accel_backends.sequence_parallel.cut import SequenceCut
from accel_backends.sequence_parallel.loader import SequencePart
from accel_state.availability import why_not
from accel_state.errors import ConfigError, NotAvailableError
from accel_state.parallelism_config import DeepSpeedSequenceParallelConfig


class SharedSequences:
    """The ranks that share sequences, and the attention of transformers' models, which they compute together.

    DeepSpeed exchanges that attention for the whole process, so one model at a time is trained.

    Args:
        size: How many ranks share a sequence.
        rank: Which of them this is.
        settings: Lengths of sequences, and which attention is exchanged.
    """

    def __init__(self, size: int, rank: int, settings: DeepSpeedSequenceParallelConfig) -> None:
        self._size = size
        self._rank = rank
        self._settings = settings
        self._attention: Any = None
        self._model: nn.Module | None = None
        self._num_summed = size

    @property
    def num_summed(self) -> int:
        """Over how many ranks DeepSpeed adds gradients up, where all else averages them."""
        return self._num_summed

    def attach(self, model: nn.Module, config: Mapping[str, Any], *, device: torch.device) -> Any:
        """Exchange the attention of ``model``, and return what tells `deepspeed.initialize` of the ranks.

        In its forward on ``device`` they draw other random numbers, for other tokens. Communicates: all ranks.

        Raises:
            NotAvailableError: If transformers is not installed.
            ConfigError: If it is no model of transformers, there is one already, its heads cannot be divided, or the
                config lets DeepSpeed average gradients now over some ranks, now over others.
        """
        reason = why_not("transformers")
        if reason is not None:
            raise NotAvailableError(
                f"`sp_size` {self._size} shares attention of `transformers`' models. {reason}"
            )
        if not hasattr(model, "config"):
            raise ConfigError(
                f"`sp_size` {self._size} shares attention of transformers' models, which `{type(model).__name__}` is "
                "not: it has no `config`. Set `sp_size` to 1."
            )
        if self._attention is not None:
            raise ConfigError(
                f"`sp_size` {self._size} shares the attention of one trained model, and there is one already. Call "
                "`free_memory` before another is prepared."
            )
        if value_of(config, "zero_optimization.stage") == 3:
            # DeepSpeed 0.19.8: reduce_scatter_coalesced divides by all ranks, all_reduce by those with other data.
            self._num_summed = 1
            if not value_of(config, "zero_optimization.reduce_scatter", True):
                raise ConfigError(
                    "`zero_optimization.reduce_scatter` is false, but with ZeRO 3 and `sp_size` "
                    f"{self._size} DeepSpeed averages gradients alike only by reduce-scatter. Remove the key."
                )
        from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        name = self._settings.sp_attn_implementation
        attention = ALL_ATTENTION_FUNCTIONS[name]
        try:
            groups = UlyssesSPAttentionHF.register_with_transformers(
                model_name_or_path=model,
                core_attn_implementation=name,
                sequence_parallel_size=self._size,
                micro_batch_size=config["train_micro_batch_size_per_gpu"],
                seq_length=self._settings.sp_seq_length,
                seq_length_is_variable=self._settings.sp_seq_length_is_variable,
            )
        except ValueError as error:  # what it says names the heads, or the two kinds of attention
            _release_groups()
            raise ConfigError(
                f"`sp_size` {self._size} is not possible with this model: {error}. "
                "Set `sp_size` to a number that fits, or to 1."
            ) from error
        self._attention, self._model = attention, model
        sharded = ALL_ATTENTION_FUNCTIONS[name]

        def attend(*args: Any, **kwargs: Any) -> Any:  # loaders of an evaluation yield full sequences
            return (sharded if model.training else attention)(*args, **kwargs)

        ALL_ATTENTION_FUNCTIONS[name] = attend
        draw_own_numbers(model, number=self._rank, device=device)
        return groups

    def detach(self) -> None:
        """Give the models of this process their own attention back."""
        if self._attention is None:
            return
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        ALL_ATTENTION_FUNCTIONS[self._settings.sp_attn_implementation] = self._attention
        self._attention = self._model = None
        _release_groups()

    def shard_buffers(
        self, buffers: Sequence[torch.Tensor], dims: Sequence[int], *, no_restore: Set[torch.Tensor]
    ) -> AbstractContextManager[Any]:
        """Return a context that does nothing: loaders shard all sequences."""
        return nullcontext()

    def wrap_loader(self, loader: Any) -> SequencePart:
        """Return a loader of this rank's part of each sequence while the model trains; an adapted one as it is."""
        return (
            loader
            if isinstance(loader, SequencePart)
            else SequencePart(
                loader,
                cut=SequenceCut(self._size, self._rank),
                setting="sp_size",
                check=refuse_left_padding,
                is_active=lambda: self._model is None or self._model.training,
            )
        )


def refuse_left_padding(batch: Mapping[str, Any]) -> None:
    """Refuse a batch that attention without a mask would not compute right.

    Raises:
        ConfigError: If sequences are padded on the left.
    """
    mask = batch.get("attention_mask")
    if mask is not None and bool((mask[:, 1:] > mask[:, :-1]).any()):
        raise ConfigError(
            "`attention_mask` leaves out tokens at the beginning of sequences, but attention over shared sequences is "
            "causal and uses no mask. Pad on the right."
        )


def _release_groups() -> None:
    """Let DeepSpeed forget the groups of ranks, which it would not make a second time."""
    from deepspeed.runtime.sequence_parallel import parallel_state_sp
    from deepspeed.utils import groups

    parallel_state_sp._SEQUENCE_PARALLEL_GROUP = None
    parallel_state_sp._SEQUENCE_DATA_PARALLEL_GROUP = None
    groups.mpu = None
