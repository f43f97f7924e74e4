"""Lazy package faces (PEP 562): a public name is imported when it is first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def attach(
    module_name: str, exports: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``(__getattr__, __dir__, __all__)`` for a package whose names live elsewhere.

    Args:
        module_name: The package's ``__name__``.
        exports: Public name to ``"module:attribute"`` (also ``"module:Class.method"``), or to ``"module"``
            where the attribute has the same name.

    A name is looked up once; afterwards it is an ordinary attribute of the package.
    """
    names = sorted(exports)

    def load(name: str) -> object:
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
        return sorted({*vars(sys.modules[module_name]), *names})

    return load, listing, names
