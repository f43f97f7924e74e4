"""Lazy package faces (PEP 562): a public name is imported when it is first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module


def attach(
    module_name: str, exports: Mapping[str, str], *, submodules: Iterable[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``(__getattr__, __dir__, __all__)`` for a package whose names live elsewhere.

    Args:
        module_name: The package's ``__name__``.
        exports: Public name to ``"module:attribute"`` (also ``"module:Class.method"``), or to ``"module"``
            where the attribute has the same name.
        submodules: Modules below the package that are attributes of it without an import. They are listed by
            ``dir``, but not in ``__all__``.

    A name is looked up once; afterwards it is an ordinary attribute of the package.
    """
    names = sorted(exports)
    modules = frozenset(submodules)

    def load(name: str) -> object:
        if name in modules:
            return import_module(f"{module_name}.{name}")
        target = exports.get(name)
        if target is None:
            raise AttributeError(f"module `{module_name}` has no attribute `{name}`", name=name)
        module, _, attribute = target.partition(":")
        value: object = import_module(module)
        for part in (attribute or name).split("."):
            value = getattr(value, part)
        setattr(sys.modules[module_name], name, value)
        return value

    def listing() -> list[str]:
        return sorted({*vars(sys.modules[module_name]), *names, *modules})

    return load, listing, names
