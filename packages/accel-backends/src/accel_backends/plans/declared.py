"""Plans that a model declares itself, or that a package declares for its models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from accel_backends.plans.checking import checked_fields
from accel_backends.plans.model_names import ModelNames, NamedModule, outermost
from accel_state.registry import Registry

PLANS: Registry[Any] = Registry("plan", "accel.plans")
_ATTRIBUTE = "parallel_plan"


def declared_by_model(names: ModelNames) -> dict[str, Any]:
    """Return the fields of ``parallel_plan`` of the model, or of the outermost modules in it that have one.

    It is an attribute, a property or a method without arguments, and its names are relative to its module.
    """
    return _combined(names, [(named, _own_plan(named.module)) for named in outermost(_declaring(names))])


def declared_by_package(names: ModelNames) -> dict[str, Any]:
    """Return the fields of the plans that packages declare for the model, or for the outermost such modules in it.

    The group of entry points is ``accel.plans``, the name of an entry point ``package.Class``, and its value a plan, or
    a function that is given the module and returns its plan.
    """
    known = set(PLANS.names())
    if not known:
        return {}
    registered = [named for named in names if _registered_name(named.module, known)]
    found = []
    for named in outermost(registered):
        plan = PLANS.get(_registered_name(named.module, known))
        found.append((named, plan(named.module) if callable(plan) else plan))
    return _combined(names, found)


def _declaring(names: ModelNames) -> Iterator[NamedModule]:
    # Not `hasattr`: PEFT and compiled modules pass attribute access on to the module inside them.
    for named in names.modules:
        if any(_ATTRIBUTE in vars(owner) for owner in (named.module, *type(named.module).__mro__)):
            yield named


def _own_plan(module: nn.Module) -> Any:
    plan: Any = getattr(module, _ATTRIBUTE)
    return plan() if callable(plan) else plan


def _registered_name(module: nn.Module, known: set[str]) -> str:
    """Return the name under which the class of ``module``, or a base of it, is known; empty if under none."""
    for kind in type(module).__mro__:
        package = kind.__module__
        while package:
            if (name := f"{package}.{kind.__qualname__}") in known:
                return name
            package = package.rpartition(".")[0]
    return ""


def _combined(names: ModelNames, found: list[tuple[NamedModule, Any]]) -> dict[str, Any]:
    parts = [
        checked_fields(plan, names, source=f"the plan of `{named.class_name}`", prefix=named.name)
        for named, plan in found
        if plan is not None
    ]
    return combined(parts) if parts else {}


def combined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the fields of plans for different modules of one model.

    There is one tail: where several plans have one, the model gets none.
    """
    fields: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            if key not in fields:
                fields[key] = value
            elif key in ("tensor", "experts", "stages"):
                fields[key] = {**fields[key], **value}
            elif key in ("units", "attention"):
                fields[key] = (*fields[key], *value)
            else:
                fields[key] = ()
    return fields
