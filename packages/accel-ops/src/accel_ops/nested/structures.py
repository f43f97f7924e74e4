"""Walk nested data: lists, tuples, named tuples, mappings and dataclasses, all keeping their type."""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch

T = TypeVar("T")
_TRACES_NO_COPY = torch.__version__ < "2.13"
"""Whether torch's compiler breaks the graph at `copy.copy`. Delete when we require torch 2.13."""


def is_torch_tensor(tensor: object) -> bool:
    """Whether the value is a ``torch.Tensor``."""
    return isinstance(tensor, torch.Tensor)


def is_namedtuple(data: object) -> bool:
    """Whether the value is an instance of a named tuple class."""
    fields = getattr(data, "_fields", None)
    return (
        isinstance(data, tuple)
        and isinstance(fields, tuple)
        and all(isinstance(name, str) for name in fields)
    )


def is_dataclass_instance(data: object) -> bool:
    """Whether the value is an instance of a dataclass (a dataclass type is a leaf)."""
    # torch.compile of torch 2.9 cannot trace `is_dataclass(None)`. Delete when we require torch 2.13.
    if data is None:
        return False
    return dataclasses.is_dataclass(data) and not isinstance(data, type)


def honor_type(obj: Any, generator: Iterable[Any]) -> Any:
    """Return the values of ``generator`` in a sequence of the type of ``obj``.

    A named tuple is built without its constructor, which may be the user's; any other type is called with one sequence.
    """
    if is_namedtuple(obj):
        return tuple.__new__(type(obj), generator)
    # torch's structured results (`torch.return_types.max`) accept a sequence, not a generator.
    return type(obj)(tuple(generator))


def rebuild_mapping(data: Mapping[Any, Any], values: Mapping[Any, Any]) -> Any:
    """Return a mapping like ``data`` (type, attributes) with ``values`` for the same keys."""
    make: Callable[..., Any] = type(data)
    if _TRACES_NO_COPY and torch.compiler.is_compiling() and is_dataclass_instance(data):
        return make(**values)  # such as a `ModelOutput` of transformers
    if isinstance(data, (dict, UserDict)):
        # Keeps attributes and default factories. Only for these two: a copy of another Mapping may share its items.
        try:
            rebuilt = copy.copy(data)
            for key, value in values.items():
                rebuilt[key] = value
        except TypeError:  # a dict that cannot be changed is built like a Mapping
            pass
        else:
            return rebuilt
    # The convention of Mapping classes: one positional argument.
    return make(dict(values))


def rebuild_dataclass(data: Any, values: Mapping[str, Any]) -> Any:
    """Return a shallow copy of the dataclass ``data`` with the given field values, frozen or not."""
    if _TRACES_NO_COPY and torch.compiler.is_compiling():
        return dataclasses.replace(data, **values)
    rebuilt = copy.copy(data)
    for name, value in values.items():
        object.__setattr__(rebuilt, name, value)  # a frozen dataclass refuses `setattr`
    return rebuilt


def map_children(data: Any, function: Callable[[Any], Any]) -> Any:
    """Return a container like the container ``data`` with ``function`` applied to each direct child."""
    kind = type(data)
    if kind is dict:
        return {key: function(value) for key, value in data.items()}
    if kind is list:
        return [function(value) for value in data]
    if kind is tuple:
        return tuple([function(value) for value in data])
    if isinstance(data, (list, tuple)):
        return honor_type(data, [function(value) for value in data])
    if isinstance(data, Mapping):
        return rebuild_mapping(data, {key: function(value) for key, value in data.items()})
    return rebuild_dataclass(data, {name: function(value) for name, value in dataclass_items(data)})


def dataclass_items(data: Any) -> list[tuple[str, Any]]:
    """Return the fields of a dataclass instance that are set, with their values."""
    return [
        (field.name, getattr(data, field.name))
        for field in dataclasses.fields(data)
        if hasattr(data, field.name)
    ]


def is_container(data: object) -> bool:
    """Whether nested data continues below the value."""
    return isinstance(data, (list, tuple, Mapping)) or is_dataclass_instance(data)


def recursively_apply(
    func: Callable[..., Any],
    data: Any,
    *args: Any,
    test_type: Callable[[Any], bool] = is_torch_tensor,
    error_on_other_type: bool = False,
    **kwargs: Any,
) -> Any:
    """Apply ``func`` to every leaf of nested data that passes ``test_type``; the structure stays.

    Args:
        func: Called as ``func(leaf, *args, **kwargs)``.
        data: A leaf, or lists, tuples, named tuples, mappings and dataclasses of them, nested to any depth.
        test_type: Which values are leaves to work on. A container that passes the test is not entered.
        error_on_other_type: Raise for leaves that fail the test instead of returning them unchanged.

    Raises:
        TypeError: If a leaf fails the test and ``error_on_other_type`` is set.
    """

    def visit(value: Any) -> Any:
        if test_type(value):
            return func(value, *args, **kwargs)
        if is_container(value):
            return map_children(value, visit)
        if error_on_other_type:
            raise TypeError(_unsupported_leaf(value, user=func, test=test_type))
        return value

    return visit(data)


def flatten(data: Any, *, user: object, dense_only: bool = True) -> tuple[list[torch.Tensor], str]:
    """Return the tensors of nested data, of any shape and device, and the structure of its containers as text.

    Raises:
        TypeError: If a leaf is not a tensor, or not dense with ``dense_only``; ``user`` is the function that
            the message names.
    """
    leaves: list[torch.Tensor] = []
    structure: list[str] = []

    def enter(values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                if dense_only and (
                    value.layout is not torch.strided or value.is_nested or value.is_quantized
                ):
                    raise TypeError(_not_dense(value, user=user))
                leaves.append(value)
                structure.append("*")
            elif isinstance(value, (list, tuple)):
                structure.append(f"[{len(value)}")
                enter(value)
            elif isinstance(value, Mapping):
                structure.append(f"{{{','.join([_spell(key) for key in value])}}}")
                enter(value.values())
            elif is_dataclass_instance(value):
                fields = dict(dataclass_items(value))
                structure.append(f"{{{','.join(fields)}}}")
                enter(fields.values())
            else:
                raise TypeError(_unsupported_leaf(value, user=user))

    enter((data,))
    return leaves, "".join(structure)


def rebuild(data: T, leaves: Iterable[torch.Tensor]) -> T:
    """Return nested data with its tensors replaced by ``leaves``, in order; shapes and devices may differ."""
    remaining: Iterator[torch.Tensor] = iter(leaves)

    def visit(value: Any) -> Any:
        return next(remaining) if isinstance(value, torch.Tensor) else map_children(value, visit)

    rebuilt: T = visit(data)
    return rebuilt


def _unsupported_leaf(value: object, *, user: object, test: object = is_torch_tensor) -> str:
    """Return the message for a leaf that ``user`` does not accept."""
    return (
        f"Unsupported types ({type(value)}) passed to `{getattr(user, '__name__', user)}`. Only nested "
        "list/tuple/"
        f"dicts of objects that are valid for `{getattr(test, '__name__', test)}` should be passed."
    )


def _spell(key: object) -> str:
    """Spell a key of a mapping alike in every process: by its value if plain, else by its class."""
    if isinstance(key, (str, int, float, bytes, type(None))):
        return repr(key)
    if isinstance(key, tuple):
        return f"({','.join([_spell(item) for item in key])})"
    return type(key).__qualname__


def _not_dense(tensor: torch.Tensor, *, user: object) -> str:
    if tensor.is_quantized:
        kind, hint = "quantized", "dequantize()"
    else:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        hint = "to_dense()"
    name = getattr(user, "__name__", user)
    return f"`{name}` takes dense tensors, got a {kind} one. Make it dense first (`{hint}`)."
