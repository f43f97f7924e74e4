"""Plans that people write: their keys, their styles, and the names that their rules match."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from accel_backends.plans.model_names import ModelNames, NamedModule, joined, without_wrappers
from accel_backends.plans.plan import EXPERT_STYLES, TENSOR_STYLES, ParallelPlan
from accel_state.errors import ConfigError, UnknownNameError

_LISTS = ("units", "tail", "attention")
_STYLES = {"tensor": TENSOR_STYLES, "experts": EXPERT_STYLES}
_FIELDS = tuple(field.name for field in dataclasses.fields(ParallelPlan))


def checked_fields(
    plan: ParallelPlan | Mapping[str, Any], names: ModelNames, *, source: str, prefix: str = ""
) -> dict[str, Any]:
    """Return the fields that a written plan has, with the names of modules and parameters in place of its rules.

    Args:
        plan: The plan. Of a `ParallelPlan` the fields that are not empty count, of a mapping all.
        names: The model.
        source: Where the plan was found, for messages.
        prefix: Name of the module in which the rules are to be read.

    Raises:
        ConfigError: If the plan has an unknown key or style, a value of the wrong kind, or a rule that matches
            nothing or a list of modules, or names a module both as a unit and in the tail.
    """
    reader = _Reader(names, source, prefix)
    fields = {key: reader.read(key, value) for key, value in _as_mapping(plan, source).items()}
    _refuse_overlap(fields.get("units", ()), fields.get("tail", ()), source)
    return fields


def _as_mapping(plan: ParallelPlan | Mapping[str, Any], source: str) -> Mapping[str, Any]:
    if isinstance(plan, ParallelPlan):
        return {name: value for name in _FIELDS if (value := getattr(plan, name))}
    if not isinstance(plan, Mapping):
        raise ConfigError(
            f"A plan is a mapping such as {{'units': ['layers.*']}}, but {source} is {plan!r}. Write it so."
        )
    for key in plan:
        if key not in _FIELDS:
            raise UnknownNameError.of(f"key in {source}:", str(key), _FIELDS)
    return plan


class _Reader:
    """Reads the rules of one plan."""

    def __init__(self, names: ModelNames, source: str, prefix: str) -> None:
        self.names = names
        self.source = source
        self.prefix = prefix

    def read(self, key: str, value: Any) -> Any:
        if key in _LISTS:
            return self._modules(key, value)
        return self._stages(value) if key == "stages" else self._styled(key, value)

    def _stages(self, value: Any) -> dict[str, tuple[str, ...]]:
        if not isinstance(value, Mapping) or any(isinstance(one, str) for one in value.values()):
            raise ConfigError(
                f"`stages` of {self.source} must map blocks to lists of the arguments that they hand on, such as "
                f"{{'layers.*': []}}, got {value!r}."
            )
        given = {named: tuple(value[rule]) for rule in value for named in self._modules("stages", [rule])}
        return {named.path: given[named] for named in self.names if named in given}

    def _modules(self, key: str, value: Any) -> tuple[NamedModule, ...]:
        if (
            not isinstance(value, Sequence)
            or isinstance(value, str)
            or not all(isinstance(rule, str) for rule in value)
        ):
            raise ConfigError(
                f"`{key}` of {self.source} must be a list of names such as ['layers.*'], got {value!r}."
            )
        found = dict.fromkeys(named for rule in value for named in self._matching(key, rule))
        for named in found:
            if key != "attention" and named.is_list:
                raise ConfigError(
                    f"`{named.name}` in `{key}` of {self.source} is a `{named.class_name}`, which is never called, so "
                    f"nothing could gather it. Write `{named.name}.*` for the modules in it."
                )
        return tuple(named for named in self.names if named in found)

    def _styled(self, key: str, value: Any) -> dict[str, str]:
        if not isinstance(value, Mapping) or not all(isinstance(rule, str) for rule in value):
            raise ConfigError(f"`{key}` of {self.source} must map names to styles, got {value!r}.")
        styled: dict[str, str] = {}
        for rule, style in value.items():
            if style not in _STYLES[key]:
                raise UnknownNameError.of(
                    f"style for `{rule}` in `{key}` of {self.source}:", str(style), _STYLES[key]
                )
            paths = self.names.paths_matching(self._pattern(rule))
            if not paths:
                raise self._unmatched(key, rule, parameters=True)
            styled.update((path, style) for path in paths)
        return styled

    def _matching(self, key: str, rule: str) -> list[NamedModule]:
        found = self.names.matching(self._pattern(rule))
        if not found:
            raise self._unmatched(key, rule)
        return found

    def _pattern(self, rule: str) -> str:
        return joined(self.prefix, without_wrappers(rule))

    def _unmatched(self, key: str, rule: str, *, parameters: bool = False) -> ConfigError:
        things = "module or parameter" if parameters else "module"
        near = self.names.nearest(without_wrappers(rule), prefix=self.prefix, parameters=parameters)
        module = self.names.at(self.prefix).class_name
        return ConfigError(
            f"The rule `{rule}` in `{key}` of {self.source} matches no {things} of `{module}`.{near} `*` stands for "
            "one part of a dotted name. Correct the rule, or take it out."
        )


def _refuse_overlap(units: Sequence[NamedModule], tail: Sequence[NamedModule], source: str) -> None:
    for last in tail:
        for unit in units:
            if last.is_inside(unit) or unit.is_inside(last):
                raise ConfigError(
                    f"`{last.name}` in `tail` and `{unit.name}` in `units` of {source} overlap: a module would be in "
                    "both. Take it out of one of them."
                )
