"""Fields of plans from several sources become one plan.

While they are merged, ``units``, ``tail`` and ``attention`` hold modules, and everything else holds paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accel_backends.plans.model_names import NamedModule
from accel_backends.plans.plan import ParallelPlan


def combined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the fields of plans for different modules of one model.

    There is one tail: where several plans have one, the model gets none.
    """
    fields: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            if key not in fields:
                fields[key] = value
            elif key in ("tensor", "experts"):
                fields[key] = {**fields[key], **value}
            elif key in ("units", "attention"):
                fields[key] = (*fields[key], *value)
            else:
                fields[key] = ()
    return fields


def merged(fields: dict[str, Any], lower: dict[str, Any]) -> dict[str, Any]:
    """Return ``fields`` and, for what they lack, those of a source of lower rank.

    A module that is in the units or the tail already is left out of the other one.
    """
    result = {**lower, **fields}
    for key, other in (("units", "tail"), ("tail", "units")):
        if key in lower and key not in fields and other in fields:
            result[key] = tuple(named for named in lower[key] if _is_apart(named, fields[other]))
    return result


def as_plan(fields: dict[str, Any]) -> ParallelPlan:
    """Return the plan with the names of its modules."""
    listed = {
        key: tuple(named.path for named in fields.get(key, ())) for key in ("units", "tail", "attention")
    }
    return ParallelPlan(**listed, tensor=fields.get("tensor"), experts=fields.get("experts", {}))


def _is_apart(named: NamedModule, taken: Sequence[NamedModule]) -> bool:
    return not any(named.is_inside(other) or other.is_inside(named) for other in taken)
