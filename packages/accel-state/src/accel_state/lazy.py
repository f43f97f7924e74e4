"""Lazy public names of packages and modules (PEP 562): each is imported when it is first used."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec

_STAR = re.compile(r"^from (\S+) import \*", re.MULTILINE)
_IMPORT = re.compile(r"^from (\S+) import \(?\s*(\w+) as (\w+)", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^(\w+) = \(?\s*([\w.]+)\.(\w+)$", re.MULTILINE)


# Why: docs/decisions/0019-public-paths-are-stubs.md
def attach_stub(
    module_name: str, *, suffix: str = ""
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``(__getattr__, __dir__, __all__)`` for a module by what the stub (``.pyi``) next to it imports.

    Type checkers and editors read the same file, so that each public name is written once
    (docs/decisions/0019-public-paths-are-stubs.md). It has lines
    ``from module import name as name``, where ``module`` is the package for modules below it, and, for a
    different public name, ``public_name = module.name`` or ``public_name = Class.method``. With
    ``from module import *`` it has the public names of another module with a stub.

    Args:
        module_name: The module's ``__name__``.
        suffix: Added to the module's name for the stub's. A stub without it hides the code of the module from type
            checkers; with it, the module has ``if TYPE_CHECKING: from <stub> import *``.
    """
    exports, submodules = _read_stub(sys.modules[module_name].__spec__, suffix=suffix)
    return attach(module_name, exports, submodules=submodules)


def _read_stub(spec: ModuleSpec | None, *, suffix: str = "") -> tuple[dict[str, str], list[str]]:
    """Return the exports and the submodules, as `attach` takes them, of the module with this specification."""
    # `.py`, or `.pyc` in an installation without sources.
    path = f"{os.path.splitext(spec.origin)[0]}{suffix}.pyi"  # type: ignore[union-attr, arg-type]  # noqa: PTH122
    stub = spec.loader.get_data(path).decode()  # type: ignore[union-attr]  # also from an archive
    exports: dict[str, str] = {}
    submodules = []
    for module in _STAR.findall(stub):
        exported, _ = _read_stub(find_spec(module))
        exports |= {name: target for name, target in exported.items() if not name.startswith("_")}
    for module, name, public_name in _IMPORT.findall(stub):
        if module == spec.name:  # type: ignore[union-attr]
            submodules.append(name)
        else:
            exports[public_name] = f"{module}:{name}"
    for public_name, owner, name in _ATTRIBUTE.findall(stub):
        exports[public_name] = f"{exports[owner]}.{name}" if owner in exports else f"{owner}:{name}"
    return exports, submodules


def attach(
    module_name: str, exports: Mapping[str, str], *, submodules: Iterable[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``(__getattr__, __dir__, __all__)`` for a module whose names are defined elsewhere.

    Args:
        module_name: The module's ``__name__``.
        exports: Public name to ``"module:attribute"`` (also ``"module:Class.method"``), or to ``"module"``
            if the attribute has the same name.
        submodules: Modules below the package that are attributes of it without an import. They are listed by
            ``dir``, but not in ``__all__``.

    A name is looked up once; afterwards it is an ordinary attribute of the module. Names that start with an underscore
    are not in ``__all__``.
    """
    names = sorted(name for name in exports if not name.startswith("_"))
    modules = frozenset(submodules)

    def load(name: str) -> object:
        if name in modules:
            return import_module(f"{module_name}.{name}")
        target = exports.get(name)
        if target is None:
            message = f"module `{module_name}` has no attribute `{name}`"
            raise AttributeError(message, name=name, obj=sys.modules[module_name])
        module, _, attribute = target.partition(":")
        value: object = import_module(module)
        for part in (attribute or name).split("."):
            value = getattr(value, part)
        setattr(sys.modules[module_name], name, value)
        return value

    def listing() -> list[str]:
        return sorted({*vars(sys.modules[module_name]), *names, *modules})

    return load, listing, names
