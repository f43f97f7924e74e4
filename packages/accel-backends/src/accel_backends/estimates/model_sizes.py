"""What of a model limits the layouts in which it can be trained."""

from __future__ import annotations

from typing import Any

from torch import nn

from accel_backends.plans.plan import ParallelPlan
from accel_state.layout_rules import ModelSizes


def model_sizes(model: nn.Module, plan: ParallelPlan, *, sequence_length: int | None = None) -> ModelSizes:
    """Return the sizes that the config of a model of transformers tells; of other models, the number of blocks.

    Args:
        model: The model.
        plan: From `resolve_plan`.
        sequence_length: Tokens of a sequence.
    """
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    experts = getattr(text, "num_local_experts", None) or getattr(text, "num_experts", None)
    return ModelSizes(
        num_heads=getattr(text, "num_attention_heads", None),
        num_key_value_heads=getattr(text, "num_key_value_heads", None),
        num_blocks=getattr(text, "num_hidden_layers", None) or len(plan.units) or None,
        num_experts=experts,
        sequence_length=sequence_length,
    )
