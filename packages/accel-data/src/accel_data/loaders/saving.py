"""The state of a loader as plain data."""

from __future__ import annotations

import base64
import copy
from typing import Any

import torch
from torch.utils.data import DataLoader

from accel_data.loaders.agreement import order_generator
from accel_data.loaders.epochs import get_sampler
from accel_data.loaders.progress import Progress, Resumption
from accel_data.loaders.sharding import index_shard, is_iterable
from accel_data.loaders.streams import has_state, stream_of
from accel_data.loaders.worker_states import check_number
from accel_data.mesh import DataRanks
from accel_data.samplers.position import Position
from accel_data.samplers.seedable import SeedableRandomSampler
from accel_state.errors import CheckpointError

VERSION = 1
_KEYS = (
    "epoch",
    "samples",
    "batches",
    "num_processes",
    "num_samples",
    "seed",
    "generator",
    "is_order_drawn",
    "dataset",
    "loader",
    "is_complete",
)


def save_progress(
    progress: Progress, base: DataLoader[Any], ranks: DataRanks, *, is_per_rank: bool
) -> dict[str, Any]:
    """Return the state of a loader: numbers, strings, and the state of a data set that has one.

    Args:
        progress: Of the loader.
        base: The loader that reads.
        ranks: Ranks that share the data.
        is_per_rank: Whether the state is this rank's alone.
    """
    current = progress.current()
    order_state, is_drawn = _order_state(progress, base)
    sampler = get_sampler(base)
    return {
        "version": VERSION,
        "epoch": progress.epoch,
        "samples": current.position.samples,
        "batches": current.position.batches,
        "num_processes": ranks.num_ranks,
        "rank": ranks.rank if is_per_rank else None,
        "num_samples": num_samples(base),
        "seed": sampler.initial_seed if isinstance(sampler, SeedableRandomSampler) else None,
        "generator": None if order_state is None else _to_text(order_state),
        "is_order_drawn": is_drawn,
        "dataset": _dataset_state(progress, base),
        "workers": None if is_iterable(base) else current.worker_states,
        "stream_workers": current.stream_workers if is_iterable(base) else None,
        "num_workers": base.num_workers if is_iterable(base) else None,
        "loader": current.loader_state,
        "is_complete": current.is_complete,
    }


def load_progress(
    state: dict[str, Any],
    progress: Progress,
    base: DataLoader[Any],
    ranks: DataRanks,
    *,
    is_per_rank: bool,
    position: bool,
) -> None:
    """Set ``progress`` so that the next pass begins at the position in ``state``.

    Raises:
        CheckpointError: If the state is of another version, of a data set of another length, of another rank, or
            holds the states of another number of workers.
    """
    _check_version(state)
    _check_keys(state)
    if position:
        _check_rank(state, base, ranks, is_per_rank=is_per_rank)
        _check_length(state, base)
        if state.get("workers") is not None:
            check_number(state["workers"], base.num_workers)
        if state.get("stream_workers") is not None and not state["is_complete"]:
            check_number(state["stream_workers"]["states"], base.num_workers)
    sampler = get_sampler(base)
    if isinstance(sampler, SeedableRandomSampler) and state["seed"] is not None:
        sampler.initial_seed, sampler.is_seed_given = state["seed"], True
    order_state = None if state["generator"] is None else _from_text(state["generator"])
    if not state["is_order_drawn"]:
        generator = order_generator(base)
        if generator is not None and order_state is not None:
            generator.set_state(order_state)
        order_state = None
    progress.begin_pass(Position())
    progress.epoch = state["epoch"]
    if not is_iterable(base) and state["dataset"] is not None:
        base.dataset.load_state_dict(state["dataset"])  # type: ignore[attr-defined]
    progress.resumption = Resumption(
        position=Position(state["samples"], state["batches"]) if position else Position(),
        order_state=order_state,
        dataset_state=state["dataset"] if position and is_iterable(base) else None,
        loader_state=state["loader"] if position else None,
        worker_states=state.get("workers") if position else None,
        stream_workers=state.get("stream_workers") if position else None,
        num_workers=state.get("num_workers"),
        num_ranks=state["num_processes"],
        is_complete=state["is_complete"] and position,
    )


def num_samples(base: DataLoader[Any]) -> int | None:
    """Return the length of an epoch over all ranks, None if it is not known."""
    shard = index_shard(base)
    if shard is None:
        return None
    try:
        return len(get_sampler(base))
    except TypeError:  # a sampler without a length
        return None


def _order_state(progress: Progress, base: DataLoader[Any]) -> tuple[torch.Tensor | None, bool]:
    """Return the state that the epoch's order is drawn from, and whether it has been drawn already."""
    if isinstance(get_sampler(base), SeedableRandomSampler):
        return None, False  # the order follows from seed and epoch
    drawn = progress.drawn_order_state()
    if drawn is not None:
        return drawn, True
    generator = order_generator(base)
    return None if generator is None else generator.get_state(), False


def _dataset_state(progress: Progress, base: DataLoader[Any]) -> Any:
    if is_iterable(base):
        has_ended = progress.resumption is None and progress.is_complete and not base.num_workers
        if has_ended and has_state(stream_of(base)):
            # Right after its last batch the data set may not know yet that the epoch has ended.
            return copy.deepcopy(stream_of(base).state_dict())
        return progress.current().dataset_state
    dataset: Any = base.dataset
    if not has_state(dataset):
        return None
    return dataset.state_dict() if progress.dataset_state is None else progress.dataset_state


def _check_version(state: dict[str, Any]) -> None:
    if state.get("version") != VERSION:
        raise CheckpointError(
            f"The state of a data loader has version {state.get('version')!r}, "
            f"this release reads version {VERSION}. Load it with the release that wrote it."
        )


def _check_keys(state: dict[str, Any]) -> None:
    missing = [key for key in _KEYS if key not in state]
    if missing:
        raise CheckpointError(
            f"The state of a data loader lacks `{'`, `'.join(missing)}`. Load what `state_dict` of a prepared "
            "loader returned."
        )


def _check_rank(state: dict[str, Any], base: DataLoader[Any], ranks: DataRanks, *, is_per_rank: bool) -> None:
    """Refuse the state of another rank, or that of all ranks together where each has its own."""
    has_begun = Position(state["samples"], state["batches"]) != Position() or state["is_complete"]
    if "rank" not in state or not has_begun:
        return  # of an earlier version, or at the start of an epoch
    then, is_part = state["rank"], state["rank"] is not None
    if is_iterable(base) and is_part != is_per_rank:
        whole, part = "all processes together", "one process, whose data set shards itself"
        raise CheckpointError(
            f"The state is that of {part if is_part else whole}, and the loader here reads for "
            f"{part if is_per_rank else whole}. Prepare it with the `dispatch_batches` of the saved run."
        )
    if is_iterable(base) and is_part and state["num_processes"] != ranks.num_ranks:
        raise CheckpointError(
            f"The state was saved with {state['num_processes']} processes. Resuming a data set that shards itself "
            f"with {ranks.num_ranks} is not possible: each process has a state of its own. Use the same number, or "
            "`dispatch_batches=True` in both runs."
        )
    if is_part and is_per_rank and then != ranks.rank and state["num_processes"] == ranks.num_ranks:
        raise CheckpointError(
            f"The state is that of process {then}, and this is process {ranks.rank}: each has a state of its own. Load "
            "what `state_dict` returned on the same process."
        )


def _check_length(state: dict[str, Any], base: DataLoader[Any]) -> None:
    here = num_samples(base)
    if here is not None and state["num_samples"] is not None and here != state["num_samples"]:
        raise CheckpointError(
            f"The state of the data loader was saved with {state['num_samples']} samples, "
            f"but there are {here} now. Use the data set and the sampler of the saved run, or begin the "
            "epoch anew with `position=False`."
        )


def _to_text(state: torch.Tensor) -> str:
    return base64.b64encode(bytes(state.tolist())).decode("ascii")


def _from_text(text: str) -> torch.Tensor:
    return torch.tensor(list(base64.b64decode(text)), dtype=torch.uint8)
