"""Attributes stored on another object."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from itertools import pairwise
from operator import attrgetter
from textwrap import dedent
from typing import Any


class AttributeProperty(property):
    # A property whose documentation is the string below its assignment, as type checkers and editors read it.

    def __init__(self, get: Callable[[Any], Any], assign: Callable[[Any, Any], None]) -> None:
        super().__init__(get, assign, doc="")  # without it `property` takes the docstring of `get`

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        """The string below the assignment, read from the source only when `help` shows it; None without sources."""
        try:
            source = inspect.getsource(self._owner)
        except (OSError, TypeError):  # TypeError for a class that was typed in at a prompt
            return None
        body = ast.parse(dedent(source)).body[0].body  # type: ignore[attr-defined]  # of a class
        for statement, below in pairwise(body):
            if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == self._name:
                return ast.literal_eval(below.value) if isinstance(below, ast.Expr) else None
        return None


def delegated(path: str, *, convert: Callable[[Any], Any] | None = None, replaces_items: bool = False) -> Any:
    """Return a property that is read from, and assigned to, another object. The class declares its type.

    Args:
        path: Attributes from the object with the property to the value, such as ``_runtime.device``.
        convert: Converts an assigned value.
        replaces_items: The value is a list that other objects refer to: an assignment replaces its items.
    """
    owner, _, name = path.rpartition(".")
    value_of, owner_of = attrgetter(path), attrgetter(owner) if owner else None

    def assign(instance: object, value: Any) -> None:
        if convert is not None:
            value = convert(value)
        if replaces_items:
            value_of(instance)[:] = value
        else:
            setattr(instance if owner_of is None else owner_of(instance), name, value)

    return AttributeProperty(value_of, assign)
