"""Write down the public surface of a module: each name of ``__all__`` with its signature and members."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

OURS = "accel"


def describe_package(module: ModuleType) -> Iterator[str]:
    """Yield the lines for ``module``: one per public name, members indented below their class."""
    for name in sorted(module.__all__):
        yield from describe(name, getattr(module, name), owner=module.__name__)


def describe(name: str, thing: Any, *, owner: str) -> Iterator[str]:
    """Yield the lines for one public name of the package ``owner``."""
    home = getattr(thing, "__module__", None)
    if isinstance(thing, ModuleType):
        yield f"module {name}"
    elif hasattr(thing, "__name__") and isinstance(home, str) and is_ours(home) and top(home) != owner:
        yield f"{name} = {top(home)}.{thing.__name__}"
    elif inspect.isclass(thing):
        yield f"class {name}({', '.join(base.__name__ for base in thing.__bases__ if base is not object)})"
        yield from (f"    {line}" for line in describe_members(thing))
    elif callable(thing):
        yield f"def {name}{signature_of(thing)}"
    else:
        yield f"{name}: {type(thing).__name__}"


def top(module: str) -> str:
    """Return the first part of a dotted name."""
    return module.split(".")[0]


def is_ours(module: str) -> bool:
    """Return True for modules of this project."""
    return top(module) == OURS or top(module).startswith(f"{OURS}_")


def signature_of(function: Callable[..., Any]) -> str:
    """Return the signature as text, the same on every run and every Python."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [each.replace(annotation=tidy(each.annotation)) for each in signature.parameters.values()]
    result = tidy(signature.return_annotation)
    text = str(signature.replace(parameters=parameters, return_annotation=result))
    return re.sub(r" at 0x[0-9a-f]+", "", text)


class _Written:
    """An annotation that prints as it was written, without quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def tidy(annotation: Any) -> Any:
    """Return ``annotation`` in a form that prints without quotes and module paths."""
    if annotation is inspect.Parameter.empty:
        return annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _Written(text.replace("typing.", "").replace("collections.abc.", ""))


def describe_members(cls: type) -> Iterator[str]:
    """Yield one line per public member that a class of ours defines, ``__init__`` first."""
    if issubclass(cls, enum.Enum):
        yield from (f"{member.name} = {member.value!r}" for member in cls)
    members: dict[str, str] = {}
    for ancestor in reversed([each for each in cls.__mro__ if is_ours(each.__module__)]):
        annotated = annotated_names(ancestor)
        for name in annotated:
            members[name] = f"{name}: {tidy(ancestor.__annotations__[name])!r}"
        for name, member in vars(ancestor).items():
            is_property = isinstance(member, property) and name in annotated
            if is_property or (name.startswith("_") and name != "__init__") or is_enum_member(cls, name):
                continue
            line = describe_member(name, member)
            if line is not None:
                members[name] = line
    yield from (members[name] for name in sorted(members))


def annotated_names(cls: type) -> list[str]:
    """Return the public names that the class body annotates."""
    return [name for name in vars(cls).get("__annotations__", {}) if not name.startswith("_")]


def is_enum_member(cls: type, name: str) -> bool:
    """Return True if ``name`` is a value of the enumeration ``cls``."""
    return issubclass(cls, enum.Enum) and name in cls.__members__


def describe_member(name: str, member: Any) -> str | None:
    """Return the line for one member, or None if an annotation already shows it."""
    if isinstance(member, property):
        settable = " (settable)" if member.fset is not None else ""
        result = tidy(inspect.signature(member.fget).return_annotation) if member.fget is not None else "?"
        return f"property {name} -> {result!r}{settable}"
    if isinstance(member, classmethod):
        return f"classmethod {name}{signature_of(member.__func__)}"
    if isinstance(member, staticmethod):
        return f"staticmethod {name}{signature_of(member.__func__)}"
    if inspect.isfunction(member):
        return f"def {name}{signature_of(member)}"
    if inspect.ismemberdescriptor(member) or inspect.isgetsetdescriptor(member):
        return None
    return None if not callable(member) and is_plain(member) else f"{name}: {type(member).__name__}"


def is_plain(member: Any) -> bool:
    """Return True for the default of a dataclass field: its annotation is the line that counts."""
    return isinstance(member, (str, int, float, bool, type(None), tuple, enum.Enum))
