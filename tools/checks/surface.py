"""Check each package's public surface against ``packages/<name>/surface.txt``; ``--update`` rewrites them.

A line for each name of ``__all__``, with its signature; the members of a class are indented below it.
"""

from __future__ import annotations

import difflib
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from tools.workspace import Package, read_packages

HEADER = (
    "# The public surface of {name}. Written by `python tools/dev.py check surface --update`; do not edit.\n"
)
OURS = re.compile(r"accel(_\w+)?(\.|$)")
PLAIN = (str, int, float, bool, type(None), tuple, enum.Enum)
"""Kinds of defaults of dataclass fields, whose annotations are shown."""


class _Written(str):
    """An annotation that prints as it was written, without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def described(name: str, thing: Any, *, package: str) -> Iterator[str]:
    """Yield the lines for one public name of ``package``."""
    home = str(getattr(thing, "__module__", None))
    top = home.partition(".")[0]
    if isinstance(thing, ModuleType):
        yield f"module {name}"
    elif hasattr(thing, "__name__") and OURS.match(home) and top != package:
        yield f"{name} = {top}.{thing.__name__}"
    elif inspect.isclass(thing):
        yield f"class {name}({', '.join(base.__name__ for base in thing.__bases__ if base is not object)})"
        yield from (f"    {line}" for line in _members(thing))
    elif callable(thing):
        yield f"def {name}{_signature(thing)}"
    else:
        yield f"{name}: {type(thing).__name__}"


def _signature(function: Callable[..., Any]) -> str:
    """Return the signature, the same on every run and every Python."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [each.replace(annotation=_tidy(each.annotation)) for each in signature.parameters.values()]
    text = str(signature.replace(parameters=parameters, return_annotation=_tidy(signature.return_annotation)))
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _tidy(annotation: Any) -> Any:
    """Return an annotation without quotes and module paths."""
    if annotation is inspect.Parameter.empty:
        return annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _Written(text.replace("typing.", "").replace("collections.abc.", ""))


def _members(cls: type) -> Iterator[str]:
    """Yield a line per value of an enumeration, and per public member that a class of ours defines."""
    values = cls.__members__ if issubclass(cls, enum.Enum) else {}
    yield from (f"{name} = {member.value!r}" for name, member in values.items() if member.name == name)
    members: dict[str, str] = {}
    for ancestor in (each for each in reversed(cls.__mro__) if OURS.match(each.__module__)):
        annotations = vars(ancestor).get("__annotations__", {})
        fields = {name: f"{name}: {_tidy(each)}" for name, each in annotations.items() if name[0] != "_"}
        members |= fields
        for name, member in vars(ancestor).items():
            is_of_field = name in fields and (
                isinstance(member, property) or inspect.ismemberdescriptor(member)
            )
            is_shown = (name[0] != "_" or name == "__init__") and name not in values
            if is_shown and not is_of_field and (line := _member(name, member)):
                members[name] = line
    yield from (members[name] for name in sorted(members))


def _member(name: str, member: Any) -> str | None:
    """Return the line for one member, or None if an annotation shows it."""
    if isinstance(member, property):
        result = _tidy(inspect.signature(member.fget).return_annotation) if member.fget is not None else "?"
        return f"property {name} -> {result}{' (settable)' if member.fset is not None else ''}"
    if isinstance(member, classmethod | staticmethod):
        return f"{type(member).__name__} {name}{_signature(member.__func__)}"
    if inspect.isfunction(member):
        return f"def {name}{_signature(member)}"
    if inspect.ismemberdescriptor(member) or inspect.isgetsetdescriptor(member) or isinstance(member, PLAIN):
        return None
    return f"{name}: {type(member).__name__}"


def present_surface(package: Package) -> str:
    """Return the surface of ``package`` now."""
    module = importlib.import_module(package.import_name)
    lines = [
        line
        for name in sorted(module.__all__)
        for line in described(name, getattr(module, name), package=package.import_name)
    ]
    return HEADER.format(name=package.name) + "".join(f"{line}\n" for line in lines)


def differences(package: Package) -> list[str]:
    """Return a diff between the snapshot and the present surface, empty if they agree."""
    file = package.folder / "surface.txt"
    recorded = file.read_text(encoding="utf-8") if file.is_file() else ""
    try:
        present = present_surface(package)
    except (ImportError, AttributeError) as error:
        return [f"{package.name}: a public name cannot be had: {error}"]
    lines = recorded.splitlines(), present.splitlines()
    return list(difflib.unified_diff(*lines, f"{package.name} recorded", "present", n=1, lineterm=""))


if __name__ == "__main__":
    packages = read_packages().values()
    for each in packages if "--update" in sys.argv else ():
        (each.folder / "surface.txt").write_text(present_surface(each), encoding="utf-8")
    found = [line for each in packages for line in differences(each)]
    hint = "If this is meant: `python tools/dev.py check surface --update`, and a line in the changelog."
    sys.exit("\n".join([*found, hint]) if found else 0)
