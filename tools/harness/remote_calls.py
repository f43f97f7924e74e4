"""Calls of test functions in other processes, which find a function by its file and name."""

from __future__ import annotations

import importlib.util
import inspect
import pickle
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from accel_state.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Body:
    """The location of a function: the name and file of its module, and its qualified name."""

    module: str
    file: str
    name: str

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Body:
        """Describe a top-level function.

        Raises:
            ConfigError: If the function cannot be found again by its name (a lambda, or one inside a
                function).
        """
        name = getattr(function, "__qualname__", repr(function))
        if "<" in name:
            raise ConfigError(
                f"`{name}` cannot be run in other processes: they find it by its name in the file. "
                "Make it a top-level function and pass its inputs as arguments."
            )
        return cls(function.__module__, inspect.getfile(function), name)

    def load(self) -> Callable[..., Any]:
        """Return the function, importing its file under its module's name if that is not done yet."""
        found: Any = load_module(self.module, self.file)
        for part in self.name.split("."):
            found = getattr(found, part)
        function: Callable[..., Any] = found
        return function


def load_module(name: str, file: str) -> ModuleType:
    """Import a file under a name, once, so that pickles of its classes find them."""
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == file:
        return known
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"`{file}` is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True, slots=True)
class Call:
    """A body and its pickled arguments, which are unpickled once the file of the body is imported."""

    body: Body
    arguments: bytes

    @classmethod
    def of(cls, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        return cls(Body.of(function), pickle.dumps((args, kwargs)))

    def __call__(self) -> Any:
        function = self.body.load()
        args, kwargs = pickle.loads(self.arguments)
        return function(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a body on one rank, pickled; or its error, as text and, if it can be pickled, as an object."""

    result: bytes = b""
    error: bytes | None = None
    trace: str | None = None
    has_intact_group: bool = False

    @classmethod
    def of_result(cls, result: Any, *, has_intact_group: bool) -> Outcome:
        return cls(result=pickle.dumps(result), has_intact_group=has_intact_group)

    @classmethod
    def of_error(cls, error: BaseException) -> Outcome:
        trace = "".join(traceback.format_exception(error))
        return cls(error=_pickled_error(error), trace=trace)

    def exception(self) -> BaseException | None:
        """Return the error, or None if it could not be pickled."""
        if self.error is None:
            return None
        error: BaseException = pickle.loads(self.error)
        return error


def _pickled_error(error: BaseException) -> bytes | None:
    """Return a pickle that can be loaded again, or None: the arguments of many exceptions are not those they keep."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except (pickle.PicklingError, TypeError, AttributeError):
        return None
    return data
