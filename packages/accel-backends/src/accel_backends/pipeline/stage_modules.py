"""Modules that replace those of other stages while the model's own forward runs as one stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from accel_backends.plans.stages import MOST_KINDS, StageBlock
from accel_ops.nested.describe import iterate_tensors
from accel_ops.nested.structures import recursively_apply
from accel_state.errors import ConfigError

_READS = {"__bool__", "__float__", "__index__", "__int__", "item", "numpy", "tolist"}
_DEPENDS_ON_SHAPE = {f"{name}_like" for name in ("empty", "full", "ones", "rand", "randn", "zeros")} | {
    f"new_{name}" for name in ("empty", "full", "ones", "tensor", "zeros")
}


class Elsewhere(torch.Tensor):
    """A tensor that another stage computes: of the right dtype and device, mostly of the right shape, of NaN.

    Results of operations on it are such tensors too, so that no stage sends or returns a value that it does not have.

    Attributes:
        value: The tensor that the previous stage sent in its place, which operations then take; None before.
    """

    value: torch.Tensor | None = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation; raise an error if it shows values to Python or writes them to another tensor."""
        args, kwargs = filled((args, kwargs or {}))
        if not is_elsewhere((args, kwargs)):
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in _READS:
            raise ConfigError(
                "The forward of the model decides by computed values, which another stage of the pipeline has. Let it "
                "decide by inputs or inside of a block, or use fewer stages (`pp_size` or processes)."
            )
        writes = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        if writes and not isinstance(args[0], cls):
            raise ConfigError(
                f"The forward of the model writes what an earlier stage of the pipeline computes to another tensor "
                f"(`{name}`), outside of its blocks. Write it inside of a block, or make a new tensor."
            )
        result = super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        if name in _DEPENDS_ON_SHAPE:
            return recursively_apply(lambda tensor: tensor.as_subclass(torch.Tensor), result)
        return result


def elsewhere(tensor: torch.Tensor, shape: Sequence[int] | None = None) -> torch.Tensor:
    """Return a tensor in place of one that another stage computes, without memory: like ``tensor``, or of ``shape``."""
    with torch._C.DisableTorchFunctionSubclass():
        if shape is None and isinstance(tensor, Elsewhere):
            return tensor.detach().as_subclass(Elsewhere)  # another one, which is not filled with it
        value = torch.nan if tensor.is_floating_point() else 0
        single = torch.full((), value, dtype=tensor.dtype, device=tensor.device)
        return single.expand(tensor.shape if shape is None else tuple(shape)).as_subclass(Elsewhere)


def filled(data: Any) -> Any:
    """Return nested data with values in place of what the previous stage has sent."""

    def value(tensor: torch.Tensor) -> torch.Tensor:
        is_filled = isinstance(tensor, Elsewhere) and tensor.value is not None
        return tensor.value if is_filled else tensor  # type: ignore[attr-defined]

    return recursively_apply(value, data)


def is_elsewhere(data: Any) -> bool:
    """Whether a tensor of nested data is one that another stage computes, and has not sent."""
    return any(isinstance(tensor, Elsewhere) for tensor in iterate_tensors(data))


class StageEnd(BaseException):
    """Leaves the model's forward where the next stage begins; no `Exception`, which the model might catch.

    Attributes:
        values: The arguments that are sent: tensors or None.
    """

    def __init__(self, values: list[torch.Tensor | None]) -> None:
        super().__init__()
        self.values = values


@dataclass(slots=True)
class StageRun:
    """What the modules of this file know of the run that is under way.

    Attributes:
        received: The arguments that the previous stage has sent, by name.
        num_outputs: How many values blocks of each kind return in a tuple; 0: a tensor.
        absent: Names of the layers of other stages that were called.
    """

    received: Mapping[str, torch.Tensor | None] = field(default_factory=dict)
    num_outputs: Sequence[int] = (0,) * MOST_KINDS
    absent: list[str] = field(default_factory=list)

    def check(self, given: Mapping[str, Any], block: str) -> None:
        """Raise an error if an argument of a block is one that another stage computes."""
        for name, value in given.items():
            if is_elsewhere(value):
                raise self.missing(f"the argument `{name}` of `{block}`")

    def missing(self, what: str) -> ConfigError:
        """Return the error for a value that another stage has."""
        called = f" Layers of other stages that it called: {', '.join(self.absent)}." if self.absent else ""
        return ConfigError(
            f"A stage of the pipeline needs {what}, which another stage computes and no block sends.{called} Blocks "
            "send their first argument; name others in the plan: `parallel_plan={'stages': {'layers.*': "
            "['memory']}}`. Register modules in the order of the forward, and those that run last in `tail`. Or split "
            "the model between other blocks (`split_points`)."
        )


class _InPlaceOf(nn.Module):
    """Has the attributes of another module, which is no submodule; its tensors are those of another stage.

    ``block`` is the module as a block, None for other layers; ``is_first`` is whether its stage begins with it.
    """

    def __init__(
        self,
        module: nn.Module,
        run: StageRun,
        name: str,
        block: StageBlock | None = None,
        *,
        is_first: bool = False,
    ) -> None:
        super().__init__()
        self.__dict__.update(original=module, run=run, name=name, block=block, is_first=is_first)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.__dict__["original"], name)
        is_absent = isinstance(value, torch.Tensor) and not isinstance(self, Entry)
        return elsewhere(value) if is_absent else value


class PassThrough(_InPlaceOf):
    """In place of a block of another stage: returns something like its first argument."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hidden = _first(args, kwargs)
        number = self.run.num_outputs[self.block.kind]
        return tuple(elsewhere(hidden) for _ in range(number)) if number else elsewhere(hidden)


class Absent(_InPlaceOf):
    """In place of a layer of another stage: returns something of the shape that the layer would return."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.run.absent.append(f"`{self.name}`")
        first, layer = _first(args, kwargs), self.original
        if isinstance(layer, nn.Embedding):
            return elsewhere(layer.weight, (*first.shape, layer.embedding_dim))
        if isinstance(layer, nn.Linear):
            return elsewhere(first, (*first.shape[:-1], layer.out_features))
        return elsewhere(first)


class Entry(_InPlaceOf):
    """In place of a block of this stage: gives it what the previous stage has sent."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = _bound(self.block, args, kwargs)
        for name, value in self.run.received.items() if self.is_first else ():
            if isinstance(given.get(name), Elsewhere):  # the model may use it again, next to the block
                given[name].value = value
            given[name] = value
        self.run.check(filled(given), self.name)
        result = self.original(
            *(filled(given.pop(name)) for name in self.block.arguments[: len(args)]),
            *filled(args[len(self.block.arguments) :]),
            **filled(given),
        )
        if isinstance(result, tuple):
            numbers, kind = self.run.num_outputs, self.block.kind
            self.run.num_outputs = (*numbers[:kind], len(result), *numbers[kind + 1 :])
        return result


class Exit(_InPlaceOf):
    """In place of the block with which the next stage begins: ends the forward."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        bound = filled(_bound(self.block, args, kwargs))
        given = {name: bound.get(name) for name in self.block.handed_on}
        self.run.check(given, self.name)
        values: list[torch.Tensor | None] = []
        for name, value in given.items():
            if value is not None and not isinstance(value, torch.Tensor):
                raise ConfigError(
                    f"The argument `{name}` of `{self.name}` is a {type(value).__name__}. Stages send tensors only: "
                    "pass its tensors as arguments of their own."
                )
            # Backward cannot begin at what was received itself.
            is_received = any(value is one for one in self.run.received.values())
            values.append(value.view_as(value) if is_received and value is not None else value)
        raise StageEnd(values)


def _first(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor:
    tensor: torch.Tensor = args[0] if args else next(iter(kwargs.values()))
    return tensor


def _bound(block: StageBlock, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name; further positional arguments are left out."""
    return {**dict(zip(block.arguments, args, strict=False)), **kwargs}
