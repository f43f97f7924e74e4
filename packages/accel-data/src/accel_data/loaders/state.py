"""How far a loader has been read, as plain data."""

from __future__ import annotations

import base64
from typing import Any

import torch
from torch.utils.data import DataLoader

from accel_data.loaders.pass_ import Progress, Resumption
from accel_data.loaders.streams import has_state
from accel_data.loaders.torch_loader import (
    get_sampler,
    index_shard,
    is_iterable,
    keep_generator,
    order_generator,
)
from accel_data.mesh import DataRanks
from accel_data.samplers.seedable import SeedableRandomSampler
from accel_data.step import START, Position, ReadStates
from accel_state.errors import CheckpointError
from accel_state.user_warnings import warn_user

VERSION = 2
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
    progress: Progress,
    base: DataLoader[Any],
    ranks: DataRanks,
    *,
    is_per_rank: bool,
    keeps_dataset_state: bool,
) -> dict[str, Any]:
    """Return the state of a loader: numbers, strings, and the state of a data set that has one.

    Args:
        progress: Of the loader.
        base: The loader that reads.
        ranks: Ranks that share the data.
        is_per_rank: Whether the state is this rank's alone.
        keeps_dataset_state: Whether the next pass continues from the state of the data set.
    """
    reached = progress.reached()
    order, is_drawn = _order(reached, base)
    sampler, dataset = get_sampler(base), reached.states.dataset
    if dataset is None and not is_iterable(base) and has_state(base.dataset):
        dataset = base.dataset.state_dict()  # type: ignore[attr-defined]
        is_known = reached.position == START or reached.states.loader is not None
        if keeps_dataset_state and base.num_workers and not is_known:
            warn_user(
                f"The state of the data set `{type(base.dataset).__name__}` in its {base.num_workers} workers is not "
                "saved, only the position. Pass `use_stateful_dataloader=True` to save it.",
            )
    return {
        "version": VERSION,
        "epoch": progress.epoch,
        "samples": reached.position.samples,
        "batches": reached.position.batches,
        "num_processes": ranks.num_ranks,
        "rank": ranks.rank if is_per_rank else None,
        "num_samples": num_samples(base),
        "seed": sampler.initial_seed if isinstance(sampler, SeedableRandomSampler) else None,
        "generator": None if order is None else _to_text(order),
        "is_order_drawn": is_drawn,
        "has_generator": order_generator(base) is not None,
        "dataset": dataset,
        "num_workers": base.num_workers,
        "loader": reached.states.loader,
        "is_complete": reached.is_complete,
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
    _check_format(state)
    if position:
        _check_rank(state, base, ranks, is_per_rank=is_per_rank)
        _check_length(state, base)
        _check_workers(state, base)
    sampler = get_sampler(base)
    if isinstance(sampler, SeedableRandomSampler) and state["seed"] is not None:
        sampler.load_seed(state["seed"])
    order, generator = _from_text(state["generator"]), order_generator(base)
    if not state["is_order_drawn"]:
        if generator is not None and order is not None:
            generator.set_state(order)
        order = None
    elif order is not None and state.get("has_generator", state["version"] == 1):
        keep_generator(base)
    if not is_iterable(base) and state["dataset"] is not None:
        base.dataset.load_state_dict(state["dataset"])  # type: ignore[attr-defined]
    if not position:
        progress.resume(state["epoch"], Resumption(order=order))
        return
    progress.resume(
        state["epoch"],
        Resumption(
            position=Position(state["samples"], state["batches"]),
            order=order,
            states=ReadStates(state["dataset"] if is_iterable(base) else None, state["loader"]),
            num_workers=state.get("num_workers"),
            num_ranks=state["num_processes"],
            is_complete=state["is_complete"],
        ),
    )


def num_samples(base: DataLoader[Any]) -> int | None:
    """Return the length of an epoch over all ranks, None if it is not known."""
    if index_shard(base) is None:
        return None
    try:
        return len(get_sampler(base))
    except TypeError:  # a sampler without a length
        return None


def _order(reached: Resumption, base: DataLoader[Any]) -> tuple[torch.Tensor | None, bool]:
    """Return the state that the epoch's order is drawn from, and whether it has been drawn already."""
    if isinstance(get_sampler(base), SeedableRandomSampler):
        return None, False  # the order follows from seed and epoch
    if reached.order is not None:
        return reached.order, True
    generator = order_generator(base)
    return None if generator is None else generator.get_state(), False


def _check_format(state: dict[str, Any]) -> None:
    if state.get("version") not in (1, VERSION):
        raise CheckpointError(
            f"The state of a data loader has version {state.get('version')!r}, "
            f"this release reads version {VERSION} and older ones. Load it with the release that wrote it."
        )
    missing = [key for key in _KEYS if key not in state]
    if missing:
        raise CheckpointError(
            f"The state of a data loader lacks `{'`, `'.join(missing)}`. Load what `state_dict` of a prepared "
            "loader returned."
        )


def _check_rank(state: dict[str, Any], base: DataLoader[Any], ranks: DataRanks, *, is_per_rank: bool) -> None:
    """Raise for the state of another rank, and that of all ranks together if each has a state."""
    has_begun = Position(state["samples"], state["batches"]) != START or state["is_complete"]
    if "rank" not in state or not has_begun:
        return  # of an earlier version, or at the start of an epoch
    then, is_part = state["rank"], state["rank"] is not None
    if is_iterable(base) and is_part != is_per_rank:
        all_ranks, part = "all processes together", "one process, whose data set shards itself"
        raise CheckpointError(
            f"The state is that of {part if is_part else all_ranks}, and the loader here reads for "
            f"{part if is_per_rank else all_ranks}. Prepare it with the `dispatch_batches` of the saved run."
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
            f"but there are {here} now. Use the data set and the sampler of the saved run, or restart the "
            "epoch with `position=False`."
        )


def _check_workers(state: dict[str, Any], base: DataLoader[Any]) -> None:
    """Raise for the states of other workers' copies of map-style data."""
    before = state.get("num_workers")
    if state["loader"] is not None and not is_iterable(base) and before != base.num_workers:
        raise CheckpointError(
            f"The state of the data set was saved with `num_workers={before}`, each with a copy, and cannot be "
            f"restored with `num_workers={base.num_workers}`. Use `num_workers={before}`, or restart "
            "the epoch with `position=False`."
        )


def _to_text(state: torch.Tensor) -> str:
    return base64.b64encode(bytes(state.tolist())).decode("ascii")


def _from_text(text: str | None) -> torch.Tensor | None:
    return None if text is None else torch.tensor(list(base64.b64decode(text)), dtype=torch.uint8)
