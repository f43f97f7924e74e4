"""Where a plan comes from: several sources, of which the first that knows a field gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from accel_backends.plans.checking import checked_fields
from accel_backends.plans.declared import declared_by_model, declared_by_package
from accel_backends.plans.merging import as_plan, merged
from accel_backends.plans.model_names import ModelNames
from accel_backends.plans.plan import ParallelPlan
from accel_backends.plans.policies import UnitsPolicy
from accel_backends.plans.repeated_blocks import inferred_from_blocks
from accel_backends.plans.transformers_models import declared_by_transformers
from accel_state.errors import ConfigError

_MODEL_SOURCES: tuple[Callable[[ModelNames], dict[str, Any]], ...] = (
    declared_by_model,
    declared_by_package,
    declared_by_transformers,
    inferred_from_blocks,
)


def resolve_plan(
    model: nn.Module,
    *,
    given: ParallelPlan | Mapping[str, Any] | None = None,
    policy: UnitsPolicy | None = None,
) -> ParallelPlan:
    """Return what ``model`` is made of, with names in place of rules, in the order of the model.

    Each field comes from the first of these that has it: ``given``, ``policy``, the model's ``parallel_plan``, the
    entry points ``accel.plans``, the attributes of transformers' models, the blocks that the model repeats.

    Args:
        model: On any device, wrapped or not; it stays as it is.
        given: The plan that the user gave.
        policy: The auto-wrap policy that the user chose; see `units_policy`.

    Returns:
        The plan. Names are those of ``model.named_modules()``; where modules are wrapped, of the outermost wrapper.
        A module has one name, and is in one of units and tail at most; units may contain units.

    Raises:
        ConfigError: If a plan that somebody wrote is wrong, or the policy finds no unit.
    """
    names = ModelNames(model)
    fields: dict[str, Any] = {}
    for answer in _answers(names, given, policy):
        fields = merged(fields, answer)
    if policy is not None and not fields.get("units") and policy.must_find_units:
        raise ConfigError(
            f"The auto-wrap policy finds no unit in `{type(model).__name__}`: the model declares no blocks and repeats "
            "none. Name classes in `transformer_cls_names_to_wrap`, or choose `SIZE_BASED_WRAP` or `NO_WRAP`."
        )
    return as_plan(fields)


def _answers(
    names: ModelNames, given: ParallelPlan | Mapping[str, Any] | None, policy: UnitsPolicy | None
) -> Iterator[dict[str, Any]]:
    if given is not None:
        yield checked_fields(given, names, source="`parallel_plan`")
    if policy is not None:
        yield policy.fields(names)
    for source in _MODEL_SOURCES:
        yield source(names)
