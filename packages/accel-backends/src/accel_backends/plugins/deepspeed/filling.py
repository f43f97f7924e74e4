"""Filling a DeepSpeed config: `auto` becomes what the run says, and contradictions are refused all at once."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from accel_backends.plugins.deepspeed.config_tree import AUTO, has_key, leaves, set_value, value_of
from accel_backends.plugins.deepspeed.facts import Facts, Said
from accel_backends.plugins.deepspeed.rules import LEFT_TO_DEEPSPEED, RULES, Conflict, Rule
from accel_state.errors import ConfigError

__all__ = ["Facts", "Filled", "Said", "fill", "fill_said"]

CONFIG = "the DeepSpeed config"
"""What a config is called that does not come from a file."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A DeepSpeed config with its ``auto`` filled.

    Attributes:
        config: The config, a copy.
        origins: Who said the value of each key that has one, in the order of the config.
        unfilled: Keys that are still ``auto``, and what could fill them; only of a config that need not be complete.
        notes: Sentences about values of the config that hold although the run says something else.
    """

    config: dict[str, Any]
    origins: Mapping[str, str]
    unfilled: Mapping[str, str]
    notes: tuple[str, ...] = ()


def fill(
    config: Mapping[str, Any],
    facts: Facts,
    *,
    source: str = CONFIG,
    origins: Mapping[str, str] | None = None,
    must_be_complete: bool = True,
) -> Filled:
    """Return the config with every ``auto`` filled with what the run says.

    Args:
        config: A DeepSpeed config; it is left alone.
        facts: What is known beside it.
        source: What the config is called in messages and origins.
        origins: Who said the values that an earlier filling has written.
        must_be_complete: Whether an ``auto`` that nobody can fill is an error.

    Raises:
        ConfigError: If values contradict each other, all of them in one message, or an ``auto`` remains.
    """
    filled = _filled(config, facts, source=source, origins=origins, has_fallbacks=True)
    if filled.unfilled and must_be_complete:
        raise ConfigError(_unfilled_text(source, filled.unfilled))
    return filled


def fill_said(
    config: Mapping[str, Any],
    facts: Facts,
    *,
    source: str = CONFIG,
    origins: Mapping[str, str] | None = None,
) -> Filled:
    """Return the config with what ``facts`` say; whatever they do not say stays ``auto``.

    Raises:
        ConfigError: If values contradict each other.
    """
    return _filled(config, facts, source=source, origins=origins, has_fallbacks=False)


def _filled(
    config: Mapping[str, Any],
    facts: Facts,
    *,
    source: str,
    origins: Mapping[str, str] | None,
    has_fallbacks: bool,
) -> Filled:
    work = _Work(copy.deepcopy(dict(config)), facts, source, dict(origins or {}), has_fallbacks)
    for rule in RULES:
        work.apply(rule)
    if work.contradictions or facts.launcher_fields:
        raise ConfigError(_contradiction_text(work))
    unfilled = {
        key: _help_for(key)
        for key, value in leaves(work.config)
        if value == AUTO and not key.startswith(LEFT_TO_DEEPSPEED)
    }
    return Filled(
        work.config,
        {key: work.origins.get(key, source) for key, _ in leaves(work.config) if key not in unfilled},
        unfilled,
        tuple(work.notes),
    )


@dataclass(slots=True)
class _Work:
    """A config that is being filled."""

    config: dict[str, Any]
    facts: Facts
    source: str
    origins: dict[str, str]
    has_fallbacks: bool
    contradictions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def apply(self, rule: Rule) -> None:
        said = rule.find(self.facts, self.config)
        if said is None and self.has_fallbacks:
            said = rule.fallback
        if said is None:
            return
        is_there = has_key(self.config, rule.key)
        current = value_of(self.config, rule.key)
        if is_there and current != AUTO:
            self._compare(rule, said, current)
        elif is_there or rule.is_always_written or self._is_asked_for(rule, said):
            set_value(self.config, rule.key, said.value)
            self.origins[rule.key] = said.by

    def _is_asked_for(self, rule: Rule, said: Said) -> bool:
        """Tell whether a key that the config leaves out is wanted: somebody asked, and it is not a matter of taste."""
        return rule.conflict is Conflict.REFUSED and not said.is_default

    def _compare(self, rule: Rule, said: Said, current: Any) -> None:
        if said.is_default or current == said.value:
            return
        who = self.origins.get(rule.key, self.source)
        sentence = f"`{rule.key}` is {_shown(current)} by {who}, but {_shown(said.value)} by {said.by}."
        (self.contradictions if rule.conflict is Conflict.REFUSED else self.notes).append(sentence)


def _contradiction_text(work: _Work) -> str:
    fields = work.facts.launcher_fields
    lines = list(work.contradictions)
    if fields:
        lines.append(
            f"{work.source} says alone what `deepspeed_config` of the launcher's config file says too: "
            f"{', '.join(f'`{name}`' for name in fields)}. Leave these out there."
        )
    return (
        "The settings of DeepSpeed contradict each other:\n"
        + "".join(f"- {line}\n" for line in lines)
        + 'Say each value in one place; `"auto"` in the DeepSpeed config takes over what the others say.'
    )


def _unfilled_text(source: str, unfilled: Mapping[str, str]) -> str:
    lines = [f"- `{key}`" + (f": needs {wanted}\n" if wanted else "\n") for key, wanted in unfilled.items()]
    return f"Nothing says what `auto` stands for in {source}:\n{''.join(lines)}Write the values there."


def _help_for(key: str) -> str:
    return next((rule.help for rule in RULES if rule.key == key), "")


def _shown(value: object) -> str:
    return f"`{value}`" if isinstance(value, str) else str(value)
