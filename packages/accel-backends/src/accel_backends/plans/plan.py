"""What a model is made of, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: How a module or a parameter is cut over the ranks that share a layer, by transformers' names and further ones.
TENSOR_STYLES = (
    "all_reduce", "colwise", "colwise_gather_output", "colwise_rep", "embedding_colwise", "embedding_rowwise",
    "local_params", "mla_kv_a_proj", "moe_identity_expert", "moe_tp_experts", "packed_colwise", "packed_qkv_colwise",
    "packed_rowwise", "colwise_gather_output_sequence", "colwise_loss_parallel", "colwise_sequence",
    "embedding_rowwise_sequence", "rowwise_sequence",
    "replicate", "replicated_with_grad_allreduce", "rowwise", "rowwise_rep", "rowwise_split_input", "sequence_parallel",
)  # fmt: skip
#: How the experts of a layer are spread over ranks, by transformers' names.
EXPERT_STYLES = ("ep_dispatch_experts", "grouped_gemm")


@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """What a model is made of. `resolve_plan` returns one in which every name is that of a module or parameter.

    In a plan that a person writes, ``*`` in a name stands for one part of it: ``layers.*`` is every layer.

    Attributes:
        units: Modules that are each gathered, checkpointed and compiled as one.
        tail: Modules that run last (final norm, head); together they are one unit, which stays gathered.
        tensor: How modules and parameters are cut for tensor parallelism: name to style, see `TENSOR_STYLES`.
        attention: The attention modules, for context and sequence parallelism.
        experts: How experts are spread: name to style, see `EXPERT_STYLES`.
        stages: The blocks between which pipeline stages may begin, in the order of the forward: name to the names of
            further arguments that earlier blocks compute. The first argument is always handed on. Blocks that a model
            repeats need no entry.
    """

    units: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()
    tensor: Mapping[str, str] | None = None
    attention: tuple[str, ...] = ()
    experts: Mapping[str, str] = field(default_factory=dict)
    stages: Mapping[str, Sequence[str]] = field(default_factory=dict)
