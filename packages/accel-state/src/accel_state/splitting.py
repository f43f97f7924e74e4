"""Split a collection between processes: consecutive items, one more on the first processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from accel_state.errors import ConfigError

T = TypeVar("T")


@contextmanager
def split_between_processes(
    inputs: T, *, rank: int, world_size: int, apply_padding: bool = False
) -> Iterator[T]:
    """Yield the share of ``inputs`` that belongs to process ``rank``.

    Three items over two processes are two and one. With ``apply_padding`` every process gets as many as the
    first, the last item of ``inputs`` filling up, so that results can be gathered. If there are fewer
    items than processes, the last processes get none (unless padded). Empty inputs stay empty.

    Args:
        inputs: A list, tuple, other sequence, tensor (split along its first dimension), array,
            pandas object, data set, or a mapping of such, all of one length. A single process gets the very object.

    Raises:
        ConfigError: If a mapping's values differ in length, or ``inputs`` has no order to split along.
    """
    if world_size == 1:
        yield inputs
        return
    yield _share(inputs, _indices(_length(inputs), rank, world_size, apply_padding))


def share_bounds(num_items: int, *, rank: int, world_size: int) -> tuple[int, int]:
    """Return the start and the end of the share of ``rank`` among ``num_items``."""
    base, num_longer = divmod(num_items, world_size)
    start = rank * base + min(rank, num_longer)
    return start, start + base + (rank < num_longer)


def _indices(num_items: int, rank: int, world_size: int, apply_padding: bool) -> tuple[range, int]:
    """Return the items of a share, and how often the last item of all is to be added."""
    start, stop = share_bounds(num_items, rank=rank, world_size=world_size)
    num_padding = -(-num_items // world_size) - (stop - start) if apply_padding else 0
    return range(start, stop), num_padding


def _length(inputs: Any) -> int:
    if isinstance(inputs, Mapping):
        return _common_length(inputs)
    if isinstance(inputs, torch.Tensor) and inputs.dim() == 0:
        raise ConfigError(
            "`inputs` contains a 0-dim tensor, which cannot be split. Add a dimension (`tensor[None]`)."
        )
    if isinstance(inputs, (str, bytes)) or not (
        hasattr(inputs, "__len__") and hasattr(inputs, "__getitem__")
    ):
        raise ConfigError(
            f"`inputs` is a `{type(inputs).__name__}`, which cannot be split between processes. "
            "Pass a list, tuple, tensor, data set, or a dict of such."
        )
    return len(inputs)


def _common_length(inputs: Mapping[Any, Any]) -> int:
    lengths = {key: _length(value) for key, value in inputs.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"`{key}`: {length}" for key, length in lengths.items())
        raise ConfigError(f"All values of the dict `inputs` must have the same length, got {listed}.")
    return next(iter(lengths.values()), 0)


def _share(inputs: Any, indices: tuple[range, int]) -> Any:
    items, num_padding = indices
    if isinstance(inputs, Mapping):
        return {key: _share(value, indices) for key, value in inputs.items()}
    if isinstance(inputs, torch.Tensor):
        part = inputs[items.start : items.stop]
        return torch.cat([part, *[inputs[-1:]] * num_padding]) if num_padding else part
    if isinstance(inputs, (list, tuple)):
        # Through the plain type: a named tuple cannot be built from fewer values.
        kind = tuple if isinstance(inputs, tuple) else list
        return kind([*inputs[items.start : items.stop], *list(inputs[-1:]) * num_padding])
    return _share_of_data_set(inputs, [*items, *[_length(inputs) - 1] * num_padding])


def _share_of_data_set(inputs: Any, indices: list[int]) -> Any:
    datasets = sys.modules.get("datasets")  # imported only if the script did, since it takes long
    if datasets is not None and isinstance(inputs, datasets.Dataset):
        return inputs.select(indices)
    if isinstance(inputs, torch.utils.data.Dataset):
        return torch.utils.data.Subset(inputs, indices)
    if not isinstance(inputs, Sequence) and hasattr(inputs, "take"):
        # By position: the brackets of a pandas Series or DataFrame look labels up. NumPy's `take` without an
        # axis flattens; that of pandas has axis 0 by default, which it also accepts by name.
        return inputs.take(indices, axis=0)
    return [inputs[index] for index in indices]
