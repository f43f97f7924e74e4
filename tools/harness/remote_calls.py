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
class Call:
    """A function of a file, and its pickled arguments, which are unpickled once the file is imported."""

    module: str
    file: str
    name: str
    arguments: bytes

    @classmethod
    def of(cls, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Describe the call of a top-level function; others cannot be found again by their names."""
        name = getattr(function, "__qualname__", repr(function))
        if "<" in name:
            raise ConfigError(
                f"`{name}` cannot be run in other processes: they find it by its name in the file. "
                "Make it a top-level function and pass its inputs as arguments."
            )
        return cls(function.__module__, inspect.getfile(function), name, pickle.dumps((args, kwargs)))

    def __call__(self) -> Any:
        found: Any = _load_module(self.module, self.file)
        for part in self.name.split("."):
            found = getattr(found, part)
        args, kwargs = pickle.loads(self.arguments)
        return found(*args, **kwargs)


def _load_module(name: str, file: str) -> ModuleType:
    """Import a file under a name, once, so that pickles of its classes find them."""
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == file:
        return known
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a body on one rank, pickled; or its error, as text and, if it can be pickled, as an object."""

    result: bytes = b""
    error: bytes | None = None
    trace: str | None = None
    has_intact_group: bool = False

    @classmethod
    def of_error(cls, error: BaseException) -> Outcome:
        """Describe an error; the arguments of many are not those that they keep, so that no pickle of them loads."""
        data: bytes | None
        try:
            data = pickle.dumps(error)
            pickle.loads(data)
        except (pickle.PicklingError, TypeError, AttributeError):
            data = None
        return cls(error=data, trace="".join(traceback.format_exception(error)))
