"""Every message that a user can meet, read from the code: of errors that are raised, and of warnings."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tools.site.wording import Function, Module, Scope, bound, has_words, parameters
from tools.workspace import Package

BUILT_IN = {
    name
    for name, each in vars(builtins).items()
    if isinstance(each, type)
    and issubclass(each, Exception)
    and not issubclass(each, AssertionError | Warning)
}
WARNING = "warning"
_WARNING_CALLS = {"warn", "warning", "warning_once"}
_UNKNOWN_NAME = "UnknownNameError"


@dataclass(frozen=True)
class Message:
    """A message, as one place in the code makes it.

    Attributes:
        text: Its words; ``<name>`` stands for what is computed.
        kind: The class of the error, or ``warning``.
        module: Where it is made.
    """

    text: str
    kind: str
    module: str


@dataclass(frozen=True)
class Place:
    """A call, and the classes and functions around it, the outermost first."""

    call: ast.Call
    around: tuple[ast.ClassDef | Function, ...]

    @property
    def function(self) -> Function | None:
        """The innermost function around the call."""
        return next((each for each in reversed(self.around) if not isinstance(each, ast.ClassDef)), None)


def messages(packages: Mapping[str, Package], classes: set[str]) -> Iterator[Message]:
    """Yield every message of errors (those of ``classes``, and built-in ones) and of warnings.

    Messages of built-in errors that are no sentence are left out: others quote them.
    """
    modules = {
        name: Module.of(name, ast.parse(file.read_text(encoding="utf-8")))
        for package in packages.values()
        for name, file in package.modules()
    }
    for module in modules.values():
        places = list(_places(module.tree, ()))
        for place in places:
            kind = _kind(place.call, classes)
            if kind is not None:
                for text in _texts(place, places, Scope(module, modules, place.function)):
                    whole = " ".join(text.split())
                    if has_words(whole) and (kind not in BUILT_IN or _is_sentence(whole)):
                        yield Message(whole, kind, module.name)


def _is_sentence(text: str) -> bool:
    return text.endswith((".", "?")) or text[0].isupper()


def _places(node: ast.AST, around: tuple[ast.ClassDef | Function, ...]) -> Iterator[Place]:
    if isinstance(node, ast.ClassDef | Function):
        around = (*around, node)
    if isinstance(node, ast.Call):
        yield Place(node, around)
    for child in ast.iter_child_nodes(node):
        yield from _places(child, around)


def _kind(call: ast.Call, classes: set[str]) -> str | None:
    """Return the class of the error that a call makes, ``warning``, or None."""
    if not call.args:
        return None
    match call.func:
        case ast.Attribute(value=ast.Name(id="UnknownNameError"), attr="of"):
            return _UNKNOWN_NAME
        case ast.Name(id="warn_user"):
            return WARNING
        case ast.Attribute(value=ast.Name(id="warnings" | "logger"), attr=name) if name in _WARNING_CALLS:
            return WARNING
        case ast.Attribute(value=ast.Name(id="errors"), attr=name) | ast.Name(id=name) if (
            name in classes | BUILT_IN
        ):
            return name
        case _:
            return None


def _texts(place: Place, places: list[Place], scope: Scope) -> Iterator[str]:
    """Yield the texts that a call makes, with the words that callers of its function give."""
    call = place.call
    for each in _scopes(place, places, scope):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "of":
            yield f"Unknown {each.text(call.args[0])} `<name>`. Known: <names>. Did you mean `<name>`?"
        else:
            values = [each.text(value) for value in call.args[1:]]
            yield from (_filled(text, values) for text in each.texts(call.args[0]))


def _filled(text: str, values: list[str]) -> str:
    """Return a text with values in it, as a logger puts them in."""
    rest = iter(values)
    return re.sub("%[sdr]", lambda found: next(rest, found[0]), text) if values else text


def _scopes(place: Place, places: list[Place], scope: Scope) -> list[Scope]:
    """Return a scope for each caller in the module that gives words of the message, else the one given."""
    function = place.function
    if function is None:
        return [scope]
    used = {node.id for node in ast.walk(place.call) if isinstance(node, ast.Name)} & {*parameters(function)}
    found = []
    for other in places if used else ():
        name = (
            other.call.func.id
            if isinstance(other.call.func, ast.Name)
            else getattr(other.call.func, "attr", "")
        )
        if name == function.name and other.function is not function:
            caller = Scope(scope.module, scope.modules, other.function, depth=1)
            given = {
                name: value for name, value in bound(function, other.call, caller).items() if name in used
            }
            if any(has_words(caller.text(value)) for value, _ in given.values()):
                found.append(Scope(scope.module, scope.modules, function, given))
    return found or [scope]
