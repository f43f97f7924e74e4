"""Where a plan comes from: several sources, of which the first that knows a field gives it.

While they are merged, ``units``, ``tail`` and ``attention`` hold modules, and everything else holds paths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from accel_backends.plans.checking import checked_fields
from accel_backends.plans.declared import declared_by_model, declared_by_package
from accel_backends.plans.model_names import ModelNames, NamedModule
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
    fields = {} if given is None else checked_fields(given, names, source="`parallel_plan`")
    if policy is not None:
        fields = _merged(fields, policy.fields(names))
    for source in _MODEL_SOURCES:
        fields = _merged(fields, source(names))
    if policy is not None and not fields.get("units") and policy.must_find_units:
        raise ConfigError(
            f"The auto-wrap policy finds no unit in `{type(model).__name__}`: the model declares no blocks and repeats "
            "none. Name classes in `transformer_cls_names_to_wrap`, or choose `SIZE_BASED_WRAP` or `NO_WRAP`."
        )
    return _as_plan(fields)


def _merged(fields: dict[str, Any], lower: dict[str, Any]) -> dict[str, Any]:
    """Return ``fields`` and, for what they lack, those of a source of lower rank.

    A module that is in the units or the tail already is left out of the other one.
    """
    result = {**lower, **fields}
    for key, other in (("units", "tail"), ("tail", "units")):
        if key in lower and key not in fields and other in fields:
            result[key] = tuple(named for named in lower[key] if _is_apart(named, fields[other]))
    return result


def _as_plan(fields: dict[str, Any]) -> ParallelPlan:
    """Return the plan with the names of its modules."""
    listed = {
        key: tuple(named.path for named in fields.get(key, ())) for key in ("units", "tail", "attention")
    }
    return ParallelPlan(
        **listed,
        tensor=fields.get("tensor"),
        experts=fields.get("experts", {}),
        stages=fields.get("stages", {}),
    )


def _is_apart(named: NamedModule, taken: Sequence[NamedModule]) -> bool:
    return not any(named.is_inside(other) or other.is_inside(named) for other in taken)
