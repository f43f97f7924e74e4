"""Prepares a model for sequences that ranks share."""

from __future__ import annotations

from torch import nn

from accel_backends.plans.plan import ParallelPlan
from accel_backends.plans.transformers_models import check_attention_is_shareable, modules_with_config
from accel_backends.sequence_parallel.model_inputs import share_inputs
from accel_backends.sequence_parallel.plain_attention import PlainAttention
from accel_backends.sequence_parallel.sharing import SequenceSharing
from accel_backends.sequence_parallel.transformers_attention import register, takes_tokens
from accel_state.errors import ConfigError


def share_attention(model: nn.Module, plan: ParallelPlan, sharing: SequenceSharing) -> None:
    """Compute the attention modules of ``model`` on all ranks that share sequences, where they do.

    Args:
        model: The model, before it is sharded, compiled or checkpointed.
        plan: Names its attention modules.
        sharing: Which sequences are shared now.

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
    if modules_with_config(model):
        register()
    taking = [module for module in model.modules() if takes_tokens(module)]
    inside = {module for outer in taking for module in outer.modules()}
    for name in plan.attention:
        module = model.get_submodule(name)
        if module not in inside and not isinstance(module.forward, PlainAttention):
            module.forward = PlainAttention(module.forward, name=name, sharing=sharing)
    share_inputs(model, sharing)
