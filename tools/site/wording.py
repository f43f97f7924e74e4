"""The text of a message, read from the expression that makes it; ``<name>`` stands for what is computed."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

PLACEHOLDER = re.compile(r"<[^<>]*>")
NAMES = Path(__file__).with_name("placeholders.toml")
"""Names of values in the reference that differ from their names in the code."""
_SAME_THING = {
    *(
        "dict",
        "getattr",
        "iter",
        "list",
        "max",
        "min",
        "next",
        "repr",
        "set",
        "shlex",
        "sorted",
        "str",
        "tuple",
    ),
}
"""Functions whose result is called like their argument."""
_SAME_OBJECT = {
    *(
        "as_posix",
        "format",
        "get",
        "items",
        "keys",
        "lower",
        "removeprefix",
        "rstrip",
        "split",
        "splitlines",
        "strip",
    ),
    "values",
}
"""Methods whose result is called like their object."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


def has_words(text: str) -> bool:
    """Return True if something of ``text`` is not computed."""
    return re.search(r"[A-Za-z]{2}", PLACEHOLDER.sub("", text)) is not None


@dataclass(frozen=True)
class Module:
    """A module whose texts are read.

    Attributes:
        name: Its dotted name.
        tree: Its syntax tree.
        constants: Expressions of names that it defines at its top.
        functions: Its functions and methods, by name.
        imported: From where it imports a name, and how that is called there.
    """

    name: str
    tree: ast.Module
    constants: Mapping[str, ast.expr]
    functions: Mapping[str, Function]
    imported: Mapping[str, tuple[str, str]]

    @classmethod
    def of(cls, name: str, tree: ast.Module) -> Module:
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        nodes = list(ast.walk(tree))
        functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
        imported = {
            alias.asname or alias.name: (node.module, alias.name)
            for node in nodes
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
        }
        return cls(name, tree, constants, functions, imported)


@dataclass(frozen=True)
class Scope:
    """The position of an expression.

    Attributes:
        module: The module.
        modules: All modules, by name.
        function: The function around the expression; None at the top of a module.
        given: Expressions of the function's parameters where its caller is known, and their scopes.
        depth: Number of names that were followed.
    """

    module: Module
    modules: Mapping[str, Module]
    function: Function | None = None
    given: Mapping[str, tuple[ast.expr, Scope]] = field(default_factory=dict)
    depth: int = 0

    def texts(self, node: ast.expr) -> Iterator[str]:
        """Yield the texts that an expression may have; several if it chooses between them."""
        if isinstance(node, ast.IfExp):
            yield from chain(self.texts(node.body), self.texts(node.orelse))
            return
        if isinstance(node, ast.Call) and (found := self._function(node)) is not None:
            function, scope = found
            results = [each.value for each in ast.walk(function) if isinstance(each, ast.Return)]
            several = [text for each in results if each is not None for text in scope.texts(each)]
            if any(map(has_words, several)):
                yield from several
                return
        if isinstance(node, ast.Name) and len(values := self._values(node.id)) > 1:
            several = [text for value, scope in values for text in scope.texts(value)]
            if any(map(has_words, several)):
                yield from several
                return
        yield self.text(node)

    def text(self, node: ast.expr) -> str:
        """Return the text of an expression, the first if there are several."""
        match node:
            case ast.Constant(value=value):
                return str(value)
            case ast.JoinedStr():
                return "".join(self.text(value) for value in node.values)
            case ast.FormattedValue():
                return self.text(node.value)
            case ast.BinOp(op=ast.Add()) if any(
                map(has_words, both := [self.text(node.left), self.text(node.right)])
            ):
                return "".join(both)
            case ast.BinOp(op=ast.Mod(), left=left):
                return self.text(left)
            case ast.IfExp() if any(map(has_words, both := [self.text(node.body), self.text(node.orelse)])):
                both = [text for text in both if text not in ("", "None")]
                return (
                    both[0] if len(both) == 1 else " or ".join(dict.fromkeys(text.strip() for text in both))
                )
            case ast.Call(
                func=ast.Attribute(attr="join", value=ast.Constant(value=separator)), args=[joined]
            ):
                return self._joined(str(separator), joined)
        for source, scope in self._sources(node):
            text = scope.text(source)
            if has_words(text) and text != "None":
                return text
        return self._named(node)

    def _joined(self, separator: str, node: ast.expr) -> str:
        if isinstance(node, ast.List | ast.Tuple):
            return separator.join(self.text(each) for each in node.elts)
        if isinstance(node, ast.GeneratorExp | ast.ListComp):
            text = self.text(node.elt)
            return text if has_words(text) and len(text.split()) > 2 else self._named(node)
        return self._named(node)

    def _named(self, node: ast.expr) -> str:
        return f"<{readable(_name(node), module=self.module.name)}>"

    def _sources(self, node: ast.expr) -> Iterator[tuple[ast.expr, Scope]]:
        """Yield expressions from which the value of ``node`` comes, if they are known."""
        if isinstance(node, ast.Name):
            yield from self._values(node.id)
        elif isinstance(node, ast.Call) and (found := self._function(node)) is not None:
            function, scope = found
            for each in ast.walk(function):
                if isinstance(each, ast.Return) and each.value is not None:
                    yield each.value, scope

    def _values(self, name: str) -> list[tuple[ast.expr, Scope]]:
        if self.depth > 4:
            return []
        if name in self.given:
            return [self.given[name]]
        if self.function is not None:
            assigned = [
                node.value
                for node in ast.walk(self.function)
                if isinstance(node, ast.Assign | ast.NamedExpr | ast.AnnAssign) and node.value is not None
                for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
                if isinstance(target, ast.Name) and target.id == name
            ]
            if assigned:
                deeper = Scope(self.module, self.modules, self.function, self.given, self.depth + 1)
                return [(value, deeper) for value in assigned]
        home = self._home(name, "constants")
        return (
            []
            if home is None
            else [(home[0].constants[home[1]], Scope(home[0], self.modules, None, {}, self.depth + 1))]
        )

    def _function(self, call: ast.Call) -> tuple[Function, Scope] | None:
        """Return our function that is called, with its arguments."""
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
            name = call.func.attr if call.func.value.id in ("self", "cls") else ""
        home = self._home(name, "functions")
        if home is None or self.depth > 4:
            return None
        function = home[0].functions[home[1]]
        return function, Scope(home[0], self.modules, function, bound(function, call, self), self.depth + 1)

    def _home(self, name: str, kind: str) -> tuple[Module, str] | None:
        """Return the module that defines ``name``, and its name there."""
        if name in getattr(self.module, kind):
            return self.module, name
        where, original = self.module.imported.get(name, ("", ""))
        if where in self.modules and original in getattr(self.modules[where], kind):
            return self.modules[where], original
        return None


def parameters(function: Function) -> list[str]:
    """Return the names of the parameters of a function, except those that collect others."""
    arguments = function.args
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def bound(function: Function, call: ast.Call, scope: Scope) -> dict[str, tuple[ast.expr, Scope]]:
    """Return the expressions that ``call`` gives the parameters of ``function``."""
    names = [name for name in parameters(function) if name not in ("self", "cls")]
    given = dict(zip(names, call.args, strict=False)) | {
        each.arg: each.value for each in call.keywords if each.arg
    }
    return {name: (value, scope) for name, value in given.items() if not isinstance(value, ast.Starred)}


@cache
def names_of_values() -> dict[str, Any]:
    """Return what values are called instead of their names in the code: by that name, or by module and that name."""
    return tomllib.loads(NAMES.read_text(encoding="utf-8"))


def readable(name: str, *, module: str) -> str:
    """Return what a reader may call a value of a module that the code calls ``name``."""
    table = names_of_values() | names_of_values().get(module, {})
    if name in table:
        return str(table[name])
    begin, of, last = name.rpartition(" of ")
    word = table.get(last, last.lower() if last.isupper() else last)
    # The message already has the unit of seconds.
    return f"{begin}{of}{re.sub('^num ', 'number of ', word).removesuffix(' s')}"


def _name(node: ast.expr) -> str:
    """Return what a reader may call the value of an expression."""
    match node:
        case ast.Name(id=name):
            return name.strip("_").replace("_", " ")
        case ast.Attribute(
            attr="__name__" | "__qualname__", value=ast.Call(func=ast.Name(id="type"), args=[argument])
        ):
            return f"type of {_name(argument)}"
        case ast.Attribute(attr="__name__" | "__qualname__" | "__class__" | "name" | "value", value=value):
            return _name(value)
        case ast.Attribute(attr=name):
            return name.strip("_").replace("_", " ")
        case ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=name)):
            return str(name)
        case (
            ast.Subscript(value=value)
            | ast.Await(value=value)
            | ast.Starred(value=value)
            | ast.UnaryOp(operand=value)
        ):
            return _name(value)
        case ast.Call(func=ast.Name(id="len"), args=[argument]):
            return f"number of {_name(argument)}"
        case ast.Call(func=ast.Name(id="type"), args=[argument]):
            return f"type of {_name(argument)}"
        case ast.Call(func=ast.Attribute(attr="join"), args=[argument]):
            return _name(argument)
        case ast.Call(func=ast.Name(id="map"), args=[_, argument]):
            return _name(argument)
        case ast.Call(func=ast.Name(id=name), args=[argument, *_]) if name in _SAME_THING:
            return _name(argument)
        case ast.Call(func=ast.Attribute(attr=name, value=value)) if name in _SAME_OBJECT:
            return _name(value)
        case ast.Call(func=function):
            return _name(function)
        case (
            ast.GeneratorExp(generators=[first, *_])
            | ast.ListComp(generators=[first, *_])
            | ast.SetComp(generators=[first, *_])
        ):
            return _name(first.iter)
        case ast.BinOp(left=left):
            return _name(left)
        case ast.BoolOp(values=[first, *_]) | ast.IfExp(body=first) | ast.NamedExpr(value=first):
            return _name(first)
        case _:
            return "value"
