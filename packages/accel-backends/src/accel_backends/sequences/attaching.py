"""Prepares a model for sequences that ranks share."""

from __future__ import annotations

from torch import nn

from accel_backends.plans.plan import ParallelPlan
from accel_backends.plans.transformers_models import (
    attention_window,
    check_attention_is_shareable,
    makes_own_masks,
)
from accel_backends.sequences.attention.call import SharedAttention
from accel_backends.sequences.attention.interception import InterceptedAttention
from accel_backends.sequences.model_inputs import share_inputs
from accel_backends.sequences.sharing import SequenceSharing
from accel_state.errors import ConfigError


def share_attention(
    model: nn.Module, plan: ParallelPlan, sharing: SequenceSharing, attend: SharedAttention
) -> None:
    """Let the attention modules of ``model`` be computed by all ranks that share sequences, where they do.

    Args:
        model: The model, before it is sharded, compiled or checkpointed.
        plan: Names its attention modules.
        sharing: Which sequences are shared now.
        attend: How ranks compute together.

    Raises:
        ConfigError: If the plan names none, or transformers' config names what cannot be shared.
    """
    check_attention_is_shareable(model)
    if not plan.attention:
        raise ConfigError(
            f"The {type(model).__name__} has no plan that names its attention modules, which "
            f"{sharing.cut.size} ranks (`{sharing.setting}`) must compute together. Name them in its `parallel_plan`: "
            '`{"attention": ["blocks.*.attention"]}`, or in that of `FullyShardedDataParallelPlugin`.'
        )
    for name in plan.attention:
        module = model.get_submodule(name)
        if not isinstance(module.forward, InterceptedAttention):
            is_of_transformers = makes_own_masks(module)
            module.forward = InterceptedAttention(
                module.forward,
                name=name,
                sharing=sharing,
                attend=attend,
                window=attention_window(module) if is_of_transformers else None,
                of_transformers=module if is_of_transformers else None,
            )
    share_inputs(model, sharing)
