"""Read the imports of a source file, and their kinds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Kind(Enum):
    """When an import happens."""

    ALWAYS = "when the module is imported"
    LATER = "inside a function, or guarded by `except ImportError`"
    TYPING = "for the type checker only"
    TEXT = "named in a string, e.g. a lazy table"


@dataclass(frozen=True)
class Import:
    """One mention of a module: its dotted name, the line, and when it is imported."""

    module: str
    line: int
    kind: Kind


DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(:[A-Za-z_]\w*)?")


def is_type_checking(test: ast.expr) -> bool:
    """Return True for ``TYPE_CHECKING`` and ``typing.TYPE_CHECKING``."""
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def catches_import_error(handler: ast.ExceptHandler) -> bool:
    """Return True if ``handler`` expects a missing module."""
    names = (
        {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)} if handler.type else set()
    )
    return bool(names & {"ImportError", "ModuleNotFoundError"})


class _Reader(ast.NodeVisitor):
    """Collects imports; ``kind`` is the visitor's position in the file."""

    def __init__(self) -> None:
        self.found: list[Import] = []
        self.kind = Kind.ALWAYS

    def within(self, kind: Kind, nodes: list[ast.stmt]) -> None:
        before, self.kind = self.kind, kind if self.kind is not Kind.TYPING else Kind.TYPING
        for node in nodes:
            self.visit(node)
        self.kind = before

    def visit_Import(self, node: ast.Import) -> None:
        self.found += [Import(alias.name, node.lineno, self.kind) for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level == 0 and node.module is not None:
            self.found.append(Import(node.module, node.lineno, self.kind))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.within(Kind.LATER, node.body)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_If(self, node: ast.If) -> None:
        if is_type_checking(node.test):
            self.within(Kind.TYPING, node.body)
            self.within(self.kind, node.orelse)
        else:
            self.generic_visit(node)

    def visit_Try(self, node: ast.Try) -> None:
        guarded = any(catches_import_error(handler) for handler in node.handlers)
        self.within(Kind.LATER if guarded else self.kind, node.body)
        for statements in (*[handler.body for handler in node.handlers], node.orelse, node.finalbody):
            self.within(self.kind, statements)

    def visit_Call(self, node: ast.Call) -> None:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        literal = node.args[0] if node.args else None
        if name == "import_module" and isinstance(literal, ast.Constant) and isinstance(literal.value, str):
            self.found.append(Import(literal.value, node.lineno, self.kind))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            self.found.append(Import(node.value.split(":")[0], node.lineno, Kind.TEXT))


def imports_of(file: Path) -> Iterator[Import]:
    """Yield every import of ``file``, in functions too, and every string that could name a module."""
    reader = _Reader()
    reader.visit(ast.parse(file.read_text(encoding="utf-8"), filename=str(file)))
    yield from reader.found
