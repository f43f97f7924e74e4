"""Gather the results of a step without padding: one row for each sample, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeVar, overload
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
import torch.distributed as dist

from accel_data.mesh import DataRanks, ranks_of_run
from accel_data.step import StepShape, full_step
from accel_ops.collectives import gather
from accel_ops.nested.describe import find_device, iterate_leaves, iterate_tensors
from accel_ops.nested.move import send_to_device
from accel_ops.nested.rows import concatenate
from accel_ops.nested.structures import recursively_apply
from accel_ops.objects import gather_object, items_of
from accel_ops.transport import current_transport
from accel_state.errors import StateError
from accel_state.gradient_state import current_gradient
from accel_state.user_warnings import warn_user

T = TypeVar("T")


@overload
def gather_for_metrics(input_data: T, *, use_gather_object: Literal[False] = False) -> T: ...
@overload
def gather_for_metrics(input_data: Any, *, use_gather_object: bool) -> Any: ...
def gather_for_metrics(input_data: Any, *, use_gather_object: bool = False) -> Any:
    """Gather over all ranks and remove duplicate rows: the padding of the last step, and the rows of ranks that
    read the same data, such as the ranks of a tensor-parallel group.

    Call it in the loop over a prepared loader, on every rank that has a batch. Over all of the loop it returns
    exactly the samples of the data set, in the order of the epoch. Over CP and SP ranks, floating-point values that
    differ, such as losses of shards, are averaged. Values without one row per sample, such as the mean of a batch, are
    returned from all ranks, with a warning if the last step is padded. So are all values outside of loops, and in the
    last step of a stream whose end is unknown. Values with the rows of a full batch are also reduced.

    Args:
        input_data: Nested tensors on any device with one row for each row of this rank's batch, of equal shapes on
            all ranks; or objects, best a list with one item for each row.
        use_gather_object: Gather objects instead of tensors, and return one list. Without any tensor this is
            always done.

    Returns:
        The same structure on every rank that called it. In the last step of a loader with
        ``even_batches=False`` only the ranks with a batch take part, and their batches may differ in length.

    Raises:
        StateError: If the loader was prepared for another number of processes.
    """
    use_gather_object = use_gather_object or _holds_objects(input_data)
    if isinstance(input_data, torch.Tensor) and current_transport().world_size == 1:
        use_gather_object = False  # `gather_object` returns it unchanged
    loader = current_gradient().active_dataloader
    if current_transport().world_size == 1 and (loader is None or loader.step_shape is None):
        return _gather(input_data, use_gather_object)
    if loader is None:
        _warn_outside_of_loops()
        return _gather_blocks(input_data, ranks_of_run(), use_gather_object)
    shape: StepShape | None = loader.step_shape
    if not loader.data_ranks.of_world:
        return _gather_blocks(input_data, ranks_of_run(), use_gather_object)
    ranks = _data_ranks(loader)
    if shape is None:
        if loader.end_of_dataloader:
            _warn_of_unknown_end()
        return _gather_blocks(input_data, ranks, use_gather_object)
    full_rows = loader.rows_of_full_batch
    if not shape.is_even:
        return _gather_uneven(input_data, shape, ranks, use_gather_object, full_rows)
    rows = shape.rows[0]
    needs_all = not shape.remainder(full_rows) and not ranks.is_shared
    if needs_all and not loader.will_pad:
        return _gather(input_data, use_gather_object)
    if not loader.counts_batches and (loader.will_pad or not shape.is_full):
        # At the first step already: a warning at the last one would appear only after a long evaluation.
        describe = items_without_rows if use_gather_object else tensor_without_rows
        problem = describe(input_data, rows, full_rows)
        if problem:
            _warn_of_missing_rows(problem, rows)
    if needs_all:
        return _gather(input_data, use_gather_object)
    return _gather_selected(
        input_data,
        Selection(shape, ranks.representatives, len(ranks.of_world), full_rows, loader.counts_batches),
        ranks,
        use_gather_object,
    )


def _gather(data: Any, use_gather_object: bool) -> Any:
    return gather_object(data) if use_gather_object else gather(data)


def _gather_blocks(data: Any, ranks: DataRanks, use_gather_object: bool) -> Any:
    """Gather everything, from one of the ranks that read the same data."""
    if not ranks.is_shared:
        return _gather(data, use_gather_object)
    shape = full_step(1, ranks.num_ranks)
    selection = Selection(shape, ranks.representatives, len(ranks.of_world), counts_batches=True)
    return _gather_selected(data, selection, ranks, use_gather_object)


def _gather_selected(data: Any, selection: Selection, ranks: DataRanks, use_gather_object: bool) -> Any:
    """Gather, and select. Values of CP and SP ranks are averaged."""
    if use_gather_object:
        return selection.select_items(gather_object([data]))
    gathered = gather(data)
    return selection.select_rows(
        average_blocks(gathered, ranks.of_world) if ranks.share_sequences else gathered
    )


def _holds_objects(data: Any) -> bool:
    """Whether there are leaves and none is a tensor. For a mixture, `gather` raises."""
    leaves = list(iterate_leaves(data))
    return bool(leaves) and not any(isinstance(leaf, torch.Tensor) for leaf in leaves)


def _gather_uneven(
    data: Any, shape: StepShape, ranks: DataRanks, use_gather_object: bool, full_rows: int | None
) -> Any:
    """Gather among the ranks with a batch. Their lengths may differ; all rows of a batch are padding, or none."""
    members = tuple(rank for rank, number in enumerate(ranks.of_world) if shape.rows[number])
    local = Selection(full_step(shape.num_valid[ranks.rank], 1), (0,), 1, full_rows)
    data = local.select_items([data]) if use_gather_object else local.select_rows(data)
    representatives = set(ranks.representatives)
    device = None if use_gather_object else find_device(data)
    values = _gather_among(members, data if use_gather_object else send_to_device(data, torch.device("cpu")))
    kept = [
        value
        for rank, value in zip(members, values, strict=True)
        if rank in representatives and shape.num_valid[ranks.of_world[rank]]
    ]
    if not use_gather_object:
        joined = concatenate(kept)
        return joined if device is None else send_to_device(joined, device)
    return [item for value in kept for item in value]


def _data_ranks(loader: Any) -> DataRanks:
    ranks: DataRanks = loader.data_ranks
    world_size = current_transport().world_size
    if len(ranks.of_world) != world_size:
        raise StateError(
            f"The active data loader was prepared for {len(ranks.of_world)} processes, but {world_size} are "
            "running, so it is unknown which of the gathered rows are duplicates. Prepare it without "
            "`num_processes`, or use `gather`."
        )
    return ranks


def _warn_of_unknown_end() -> None:
    warn_user(
        "The end of the active data loader's data set is unknown, so `gather_for_metrics` removes nothing "
        "from the last step, which may contain duplicate rows. Prepare the loader with `dispatch_batches=True` to "
        "get each sample once.",
    )


def _warn_of_missing_rows(problem: str, rows: int) -> None:
    warn_user(
        f"{problem}, but this rank's batch has {rows}, so `gather_for_metrics` returns it from all ranks in each step, "
        "also from ranks that repeat samples in the last one. Pass one row for each sample (for a loss: "
        "`reduction='none'`) to count each once.",
        main_process_only=False,
    )


def _warn_outside_of_loops() -> None:
    warn_user(
        "`gather_for_metrics` was called outside of a loop over a prepared data loader, so it removes nothing: "
        "samples that were repeated in the last step are counted twice. Call it in the loop, for each batch.",
    )


#: By the default group, and by their ranks. Weak, since torch owns both.
_groups: WeakKeyDictionary[dist.ProcessGroup, WeakValueDictionary[tuple[int, ...], dist.ProcessGroup]]
_groups = WeakKeyDictionary()


def _group_of(ranks: tuple[int, ...]) -> dist.ProcessGroup:
    """Return the process group of ``ranks``; only its members may call it."""
    world = dist.group.WORLD
    assert world is not None, "called while several ranks are running"
    groups = _groups.setdefault(world, WeakValueDictionary())
    group = groups.get(ranks)
    if group is None:
        group = groups[ranks] = dist.new_group(list(ranks), use_local_synchronization=True)
    return group


def _gather_among(ranks: tuple[int, ...], value: Any) -> list[Any]:
    """Return the values of ``ranks``, in their order, on each of them.

    Only these ranks may call it, and all of them must; other ranks do not take part in creating the group.
    """
    if len(ranks) == 1:
        return [value]
    if len(ranks) == current_transport().world_size:
        return list(gather_object([value]))
    values: list[Any] = [None] * len(ranks)
    dist.all_gather_object(values, value, group=_group_of(ranks))
    return values


@dataclass(frozen=True, slots=True)
class Selection:
    """The values to keep of a step that all ranks of the world have gathered.

    Args:
        shape: The step, over the ranks that read different data.
        ranks: For each of these, the rank of the world whose values are kept.
        world_size: The ranks of the world.
        full_rows: Rows of a rank in a full step; values with as many are also reduced to its new samples.
        counts_batches: Whether the shape counts batches of any number of rows.
    """

    shape: StepShape
    ranks: tuple[int, ...]
    world_size: int
    full_rows: int | None = None
    counts_batches: bool = False

    def select_rows(self, data: Any) -> Any:
        """Return nested tensors without padding; of tensors with other numbers of rows, the rows of all ``ranks``."""
        return recursively_apply(self._select, data)

    def select_items(self, values: Sequence[Any]) -> list[Any]:
        """Return the items of the objects of all ranks, as `select_rows`."""
        items: list[Any] = []
        for rank, rows, num_valid in zip(self.ranks, self.shape.rows, self.shape.num_valid, strict=True):
            value = values[rank]
            if self.counts_batches:
                items += items_of(value) if num_valid else []
            elif items_without_rows(value, rows, self.full_rows):
                items += items_of(value)
            else:
                items += value[:num_valid]
        return items

    def _select(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.ndim:  # has not been gathered yet
            return tensor
        rows, valid = tensor.shape[0] // self.world_size, self.shape.num_valid
        if self.counts_batches:
            kept = [rows * bool(number) for number in valid]
        else:
            kept = list(valid) if rows in (self.shape.rows[0], self.full_rows) else [rows] * len(valid)
        parts = [
            slice(rank * rows, rank * rows + number)
            for rank, number in zip(self.ranks, kept, strict=True)
            if number
        ]
        if all(part.stop == after.start for part, after in pairwise(parts)):  # a view
            return tensor[parts[0].start : parts[-1].stop] if parts else tensor[:0]
        return torch.cat([tensor[part] for part in parts])


def average_blocks(data: Any, of_world: tuple[int, ...]) -> Any:
    """Return gathered floating-point tensors whose blocks are the mean over the ranks with one number in ``of_world``.

    Equal blocks are not changed, to the last bit.
    """

    def average(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.ndim or not len(tensor) or not tensor.is_floating_point():
            return tensor
        blocks = list(tensor.chunk(len(of_world)))
        for number in set(of_world):
            members = [rank for rank, other in enumerate(of_world) if other == number]
            first, *rest = (blocks[rank] for rank in members)
            if not all(torch.equal(first, block) for block in rest):
                mean = torch.stack([first, *rest]).mean(0)
                for rank in members:
                    blocks[rank] = mean
        return torch.cat(blocks)

    return recursively_apply(average, data)


def tensor_without_rows(data: Any, rows: int, full_rows: int | None = None) -> str | None:
    """Describe the first tensor that has neither ``rows`` nor ``full_rows`` rows; None if there is none."""
    for tensor in iterate_tensors(data):
        num_rows = tensor.shape[0] if tensor.ndim else None
        if num_rows not in (rows, full_rows or rows) and not (num_rows is None and rows == 1):
            return f"A tensor of shape {tuple(tensor.shape)} has {num_rows or 'no'} rows"
    return None


def items_without_rows(items: Any, rows: int, full_rows: int | None = None) -> str | None:
    """Describe objects that are not one list of ``rows`` or ``full_rows`` items; None if they are."""
    if not isinstance(items, (list, tuple, torch.Tensor)) or (
        isinstance(items, torch.Tensor) and not items.ndim
    ):
        return f"An object of type `{type(items).__name__}` has no rows"
    return None if len(items) in (rows, full_rows) else f"A list has {len(items)} items"
