"""The modules of a model by the names that their author knows, whatever has been wrapped around them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from torch import nn

from accel_backends.unwrap import containers

# What checkpointing and `torch.compile` put into the names of the modules inside them.
_WRAPPER_KEYS = ("_checkpoint_wrapped_module", "_orig_mod")
_NUM_SUGGESTIONS = 3


@dataclass(frozen=True, slots=True, eq=False)
class NamedModule:
    """A module and its place in a model.

    Attributes:
        name: Its name without the parts that wrappers add; the root is called ``""``.
        path: The name in ``model.named_modules()`` of the outermost wrapper around it, or its own if there is none.
        inner_path: The name in ``model.named_modules()`` of the module itself.
        module: The module inside its wrappers.
        num_parameters: Elements of its parameters, those of its descendants included, each counted once.
        is_leaf: Whether no module inside it has parameters of its own.
        children: The modules in it, without those that are listed at an earlier place.
    """

    name: str
    path: str
    inner_path: str
    module: nn.Module
    num_parameters: int
    is_leaf: bool
    children: list[NamedModule] = field(default_factory=list)

    @property
    def class_name(self) -> str:
        """The name of its class."""
        return type(self.module).__name__

    @property
    def is_list(self) -> bool:
        """Whether it only lists modules, and is never called itself."""
        return isinstance(self.module, nn.ModuleList | nn.ModuleDict)

    def is_inside(self, other: NamedModule) -> bool:
        """Whether it is ``other`` or a descendant of it."""
        return is_inside(self.name, other.name)


def is_inside(name: str, ancestor: str) -> bool:
    """Whether ``name`` is ``ancestor`` or the name of something in it."""
    return not ancestor or name == ancestor or name.startswith(f"{ancestor}.")


def joined(prefix: str, name: str) -> str:
    """Return the name of ``name`` inside ``prefix``; either may be empty."""
    return f"{prefix}.{name}" if prefix and name else prefix or name


def without_wrappers(name: str) -> str:
    """Return a name without the parts that checkpointing and `torch.compile` add."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPER_KEYS)


class ModelNames:
    """All modules of a model. A module at several places is one module, which is listed at the first of them."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modules: list[NamedModule] = []
        self._by_name: dict[str, NamedModule] = {}
        self._by_id: dict[int, NamedModule] = {}
        self._parameters: dict[str, str] = {}
        self._sizes: dict[int, int] = {}
        self._containers = containers()
        self._measure(model)
        self._walk("", "", model, None)
        self.root = self.modules[0]

    def __iter__(self) -> Iterator[NamedModule]:
        return iter(self.modules)

    def at(self, name: str) -> NamedModule:
        """Return the module called ``name``, which exists."""
        return self._by_name[name]

    def of(self, module: nn.Module) -> NamedModule | None:
        """Return the place of ``module``, given as it is or in its wrappers; None if it is not in the model."""
        return self._by_id.get(id(module))

    def matching(self, pattern: str) -> list[NamedModule]:
        """Return the modules whose name, or one of whose names, fits ``pattern``, in the order of the model."""
        found = {self._by_name[name] for name in _fitting(pattern, self._by_name)}
        return [named for named in self.modules if named in found]

    def paths_matching(self, pattern: str) -> list[str]:
        """Return the paths of modules and parameters whose name fits ``pattern``."""
        parameters = [self._parameters[name] for name in _fitting(pattern, self._parameters)]
        return [named.path for named in self.matching(pattern)] + parameters

    def parent(self, named: NamedModule) -> NamedModule | None:
        """Return the module that a module is a child of, None for the root."""
        return self._by_name[named.name.rpartition(".")[0]] if named.name else None

    def class_names(self) -> list[str]:
        """Return the names of the classes of all modules in it that have parameters and are called, sorted."""
        return sorted(
            {named.class_name for named in self.modules[1:] if named.num_parameters and not named.is_list}
        )

    def nearest(self, rule: str, *, prefix: str = "", parameters: bool = False) -> str:
        """Return a sentence with the rules nearest to one that fits nothing in ``prefix``, or an empty string."""
        names = [*self._by_name, *(self._parameters if parameters else ())]
        inside = (
            name.removeprefix(f"{prefix}.") for name in names if name != prefix and is_inside(name, prefix)
        )
        return nearest(rule, dict.fromkeys(_as_pattern(name) for name in inside))

    def _measure(self, module: nn.Module) -> dict[int, int]:
        """Note the sizes of ``module`` and its descendants; return those of its parameters, by their identity."""
        sizes = {id(found): found.numel() for found in module._parameters.values() if found is not None}
        for child in module._modules.values():
            if child is not None:
                sizes |= self._measure(child)
        self._sizes[id(module)] = sum(sizes.values())
        return sizes

    def _walk(self, name: str, path: str, module: nn.Module, parent: NamedModule | None) -> None:
        outer, inner, inner_path = module, module, path
        while (key := self._wrapped_key(inner)) is not None:
            child = inner._modules[key]
            assert child is not None
            inner, inner_path = child, joined(inner_path, key)
        named = self._by_id.get(id(inner))
        if named is None:
            is_leaf = not any(self._sizes[id(child)] for child in inner.children())
            named = NamedModule(name, path, inner_path, inner, self._sizes[id(inner)], is_leaf)
            self.modules.append(named)
            if parent is not None:
                parent.children.append(named)
        self._by_id[id(inner)] = self._by_id[id(outer)] = named
        self._by_name[name] = named
        for key, parameter in inner._parameters.items():
            if parameter is not None:
                self._parameters[joined(name, key)] = joined(named.inner_path, key)
        for key, child in inner._modules.items():
            if child is not None:
                self._walk(joined(name, key), joined(inner_path, key), child, named)

    def _wrapped_key(self, module: nn.Module) -> str | None:
        if isinstance(module, self._containers):
            return "module"
        return next((key for key in _WRAPPER_KEYS if key in module._modules), None)


def outermost(found: Iterable[NamedModule]) -> list[NamedModule]:
    """Return those of ``found``, which is in the order of the model, that are not inside another one."""
    kept: list[NamedModule] = []
    for named in found:
        if not kept or not named.is_inside(kept[-1]):
            kept.append(named)
    return kept


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `` Nearest: `x`, `y`.``, or an empty string when no known name is near."""
    near = difflib.get_close_matches(name, list(known), n=_NUM_SUGGESTIONS)
    return f" Nearest: {', '.join(f'`{candidate}`' for candidate in near)}." if near else ""


def _fitting(pattern: str, names: Mapping[str, object]) -> list[str]:
    """Return the names that fit ``pattern``, in their order."""
    if "*" not in pattern:
        return [pattern] if pattern in names else []
    fits = re.compile(re.escape(pattern).replace(r"\*", "[^.]+")).fullmatch
    return [name for name in names if fits(name)]


def _as_pattern(name: str) -> str:
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))
