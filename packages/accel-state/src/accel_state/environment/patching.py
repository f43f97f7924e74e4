"""Temporary changes of the environment."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from accel_state.environment.environ import export, restore, snapshot

Wrapped = TypeVar("Wrapped", bound=Callable[..., Any])
_PREFIX = "ACCELERATE_"


@contextmanager
def patch_environment(**kwargs: Any) -> Iterator[None]:
    """Set variables inside the block and restore their earlier values after it, also after an error.

    Names are put in upper case; values are written as text, and None unsets the variable for the block.
    Other changes made inside the block stay. Also works as a decorator.
    """
    changes = {key.upper(): None if value is None else str(value) for key, value in kwargs.items()}
    before = snapshot()
    try:
        export(changes)
        yield
    finally:
        export({key: before.get(key) for key in changes})


@contextmanager
def clear_environment() -> Iterator[None]:
    """Empty the environment inside the block, and restore it after the block."""
    before = snapshot()
    restore({})
    try:
        yield
    finally:
        restore(before)


@contextmanager
def _kept() -> Iterator[None]:
    """Undo, after the block, every change of a variable whose name starts with ``ACCELERATE_``."""
    before = snapshot()
    try:
        yield
    finally:
        keys = {key for key in {*before, *snapshot()} if key.startswith(_PREFIX)}
        export({key: before.get(key) for key in keys})


def purge_accelerate_environment(func_or_cls: Wrapped) -> Wrapped:
    """Decorate a function, or each method of a class, so that ``ACCELERATE_*`` variables outlive no call.

    Variables that were set before the call have their earlier values after it. Some classes of downstream
    libraries set such variables when they are built, which would otherwise change what runs next. Methods
    of subclasses are also covered, and generators and coroutines until they end.
    """
    if isinstance(func_or_cls, type):
        _purge_class(func_or_cls)
        return func_or_cls
    return cast(Wrapped, _purge_function(func_or_cls))


def _purge_function(function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with _kept():
                return await function(*args, **kwargs)

        return functools.wraps(function)(run_async)
    if inspect.isgeneratorfunction(function):

        def run_generator(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with _kept():
                yield from function(*args, **kwargs)

        return functools.wraps(function)(run_generator)
    return _kept()(function)


def _purge_class(cls: type[Any]) -> None:
    _purge_methods(cls)
    defined: Any = vars(cls).get("__init_subclass__")

    def init_subclass(subclass: type[Any], /, **kwargs: Any) -> None:
        if defined is None:
            super(cls, subclass).__init_subclass__(**kwargs)
        else:
            defined.__get__(None, subclass)(**kwargs)
        _purge_methods(subclass)

    cls.__init_subclass__ = classmethod(init_subclass)  # type: ignore[assignment]


def _purge_methods(cls: type) -> None:
    for name, member in list(vars(cls).items()):
        if isinstance(member, (staticmethod, classmethod)):
            if name != "__init_subclass__":
                setattr(cls, name, type(member)(_purge_function(member.__func__)))
        elif inspect.isfunction(member):
            setattr(cls, name, _purge_function(member))
