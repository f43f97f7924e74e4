"""The styles of tensor parallelism for layers of any model: what each shards, and torch's class that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
)

from accel_backends.tensor_parallel.local_linear import PackedColwise
from accel_state.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CutStyle:
    """How one layer is sharded over the TP ranks.

    Attributes:
        make: Returns torch's style.
        kinds: The classes that it shards; empty: any.
        dim: The dimension of ``weight`` that is sharded, None if none is.
        uneven: The style for the same layer that takes any size, where this one needs a divisible size; empty if this
            one takes any.
        num_blocks: Matrices of one size that are stacked in the weight, each of which is sharded.
        in_sequence: Whether activations before or after the layer are sharded by tokens.
        gathers: Whether models use such a layer where its outputs leave a unit.
        dims: The dimension of each sharded parameter, by name, where they are not those of a linear layer.
    """

    make: Callable[[], ParallelStyle]
    kinds: tuple[type[nn.Module], ...] = ()
    dim: int | None = None
    uneven: str = ""
    num_blocks: int = 1
    in_sequence: bool = False
    gathers: bool = False
    dims: Mapping[str, int] | None = None

    def dim_of(self, key: str) -> int | None:
        """Return the dimension along which the parameter ``key`` of a layer is sharded, None if it is not."""
        if self.dims is not None:
            return self.dims.get(key)
        return self.dim if key == "weight" or self.dim == 0 else None

    def check(self, style: str, name: str, module: nn.Module, *, num_ranks: int) -> None:
        """Check that a layer can be sharded by this style.

        Raises:
            ConfigError: If not; names the layer, its size, and what would work.
        """
        if self.kinds and not isinstance(module, self.kinds):
            wanted = " or ".join(f"`torch.nn.{kind.__name__}`" for kind in self.kinds)
            found, hint = (f"`{type(module).__name__}`", "or make it of that class")
            if type(module).__module__.startswith("peft."):
                found, hint = (
                    f"{found} of PEFT",
                    "merge it (`merge_and_unload`), or use FSDP without `tp_size`",
                )
            raise ConfigError(
                f"`{name}` has the style `{style}`, which cuts {wanted}, but is a {found}. Take it out of `tensor` of "
                f"the plan, {hint}."
            )
        if self.dim is None or not self.uneven:
            return
        size = _size(module, self.dim)
        if size % (num_ranks * self.num_blocks):
            blocks = "" if self.num_blocks == 1 else f"{self.num_blocks} times "
            size //= self.num_blocks
            raise ConfigError(
                f"`{name}` has the style `{style}`, but `tp_size` {num_ranks} does not divide its {blocks}{size} "
                f"{'outputs' if self.dim == 0 else 'inputs'}. Choose a `tp_size` that does: {divisors(size)}; or the "
                f"style `{self.uneven}`, which cuts any size."
            )


def check_heads(
    name: str, module: nn.Module, parent: nn.Module, *, num_ranks: int, num_blocks: int = 1
) -> None:
    """Check that the TP size divides the heads of an attention layer.

    Args:
        name: The name of the layer.
        module: The layer, sharded by its outputs.
        parent: The module around it; without ``head_dim`` the heads are not known.
        num_ranks: The number of TP ranks.
        num_blocks: Matrices of one size in its weight.

    Raises:
        ConfigError: If not; names the layer and the number of heads.
    """
    head_dim = getattr(parent, "head_dim", None)
    size = _size(module, 0) // num_blocks
    if type(head_dim) is not int or size % head_dim or not (size // head_dim) % num_ranks:
        return
    heads = size // head_dim
    raise ConfigError(
        f"`{name}` computes {heads} heads of {head_dim} values, which {num_ranks} ranks (`tp_size`) cannot share "
        f"equally. Choose a `tp_size` that divides {heads}: {divisors(heads)}."
    )


def _size(module: nn.Module, dim: int) -> int:
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    return weight.shape[dim]


def divisors(size: int) -> str:
    """Return the divisors of ``size`` up to 64, for messages."""
    return ", ".join(str(number) for number in range(1, min(size, 64) + 1) if size % number == 0)


_LINEAR, _EMBEDDING = (nn.Linear,), (nn.Embedding,)
_WHOLE, _SEQUENCE = Replicate(), Shard(1)
_GATHERED = CutStyle(lambda: ColwiseParallel(output_layouts=_WHOLE), _LINEAR, 0, gathers=True)
_SPLIT = CutStyle(lambda: RowwiseParallel(input_layouts=_WHOLE), _LINEAR, 1)


def _packed(num_blocks: int) -> CutStyle:
    return CutStyle(
        lambda: PackedColwise(num_blocks), _LINEAR, 0, uneven="colwise_gather_output", num_blocks=num_blocks
    )


#: By the name that plans use. What is not here are parts of models of transformers that torch has no style for.
# ruff: noqa: E501 -- a row is a line
# fmt: off
STYLES = {
    "colwise": CutStyle(ColwiseParallel, _LINEAR, 0, uneven="colwise_gather_output"),
    "colwise_gather_output": _GATHERED,
    "colwise_rep": _GATHERED,
    "rowwise": CutStyle(RowwiseParallel, _LINEAR, 1, uneven="rowwise_split_input"),
    "rowwise_split_input": _SPLIT,
    "rowwise_rep": _SPLIT,
    "packed_colwise": _packed(2),
    "packed_qkv_colwise": _packed(3),
    "embedding_rowwise": CutStyle(lambda: RowwiseParallel(input_layouts=_WHOLE), _EMBEDDING, 0, gathers=True),
    "embedding_colwise": CutStyle(lambda: ColwiseParallel(output_layouts=_WHOLE), _EMBEDDING, 1, gathers=True),
    # A norm of each head: any dimension but the last may be the one that ranks have parts of.
    "replicated_with_grad_allreduce": CutStyle(lambda: SequenceParallel(sequence_dim=0, use_local_output=True)),
    "colwise_loss_parallel": CutStyle(lambda: ColwiseParallel(use_local_output=False), _LINEAR, 0),
    "sequence_parallel": CutStyle(lambda: SequenceParallel(use_local_output=True), in_sequence=True),
    "embedding_rowwise_sequence": CutStyle(lambda: RowwiseParallel(input_layouts=_WHOLE, output_layouts=_SEQUENCE), _EMBEDDING, 0, in_sequence=True),
    "colwise_sequence": CutStyle(lambda: ColwiseParallel(input_layouts=_SEQUENCE), _LINEAR, 0, uneven="colwise_gather_output_sequence", in_sequence=True),
    "colwise_gather_output_sequence": CutStyle(lambda: ColwiseParallel(input_layouts=_SEQUENCE, output_layouts=_WHOLE), _LINEAR, 0, in_sequence=True, gathers=True),
    "rowwise_sequence": CutStyle(lambda: RowwiseParallel(output_layouts=_SEQUENCE), _LINEAR, 1, uneven="rowwise_split_input", in_sequence=True),
}
# fmt: on
