"""The data and the position of a prepared loader: in memory, as plain data, and as a checkpoint file."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from accel_data.iterable_shard import IterableDatasetShard
from accel_data.mesh import DataRanks
from accel_data.samplers.batch_shard import BatchSamplerShard
from accel_data.samplers.order import EpochOrder
from accel_data.samplers.seedable import SeedableRandomSampler
from accel_data.step import NO_STATES, START, Position, ReadStates, StepInfo
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
_FILE_MARK = "accel_loader"
_FILE_VERSION = 1


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """The data of a prepared loader. Torch forbids changing these fields of a loader later, except for the sampler.

    Args:
        loader: The loader, with this rank's part of its indices or its stream.
        is_stream: Whether it reads a stream, without indices.
        dataset: The user's data set, without our shard around it.
        has_state: Whether that has `state_dict` and `load_state_dict`.
        is_stateful: Whether the loader is a `StatefulDataLoader`, or another one with a state.
        index_shard: Gives this rank's indices; None for a stream.
        stream_shard: Gives this rank's samples of a stream; None if one rank reads it or it is self-sharding.
        batch_sampler: The innermost batch sampler, which has the sampler of single indices.
    """

    loader: DataLoader[Any]
    is_stream: bool
    dataset: Any
    has_state: bool
    is_stateful: bool
    index_shard: BatchSamplerShard | None
    stream_shard: IterableDatasetShard | None
    batch_sampler: Any

    @property
    def shard(self) -> BatchSamplerShard | IterableDatasetShard | None:
        """The shard of this rank, None for a self-sharding data set."""
        return self.index_shard if self.stream_shard is None else self.stream_shard

    @property
    def sampler(self) -> Any:
        """The sampler that yields single indices, None if there is none."""
        return getattr(self.batch_sampler, "sampler", None)

    @property
    def num_samples(self) -> int | None:
        """The length of an epoch over all ranks, None if it is not known."""
        if self.is_stream:
            return None
        try:
            return len(self.sampler)
        except TypeError:  # a sampler without a length
            return None

    @property
    def _drawn_by(self) -> tuple[Any, ...]:
        """The objects whose attribute `generator` the order is drawn from."""
        if self.index_shard is None:
            return (self.dataset,)
        batch_sampler = self.index_shard.batch_sampler
        return getattr(batch_sampler, "sampler", None), batch_sampler

    @property
    def generator(self) -> torch.Generator | None:
        """The generator that the order is drawn from, None if samplers or the stream have none."""
        generators = [getattr(each, "generator", None) for each in self._drawn_by]
        return next((each for each in generators if isinstance(each, torch.Generator)), None)

    @property
    def lacks_generator(self) -> bool:
        """Whether it is known that the order is drawn from torch's default generator, since samplers have none."""
        return (
            not self.is_stream
            and self.generator is None
            and any(hasattr(each, "generator") for each in self._drawn_by)
        )

    def keep_generator(self) -> None:
        """Set a new generator on samplers without one."""
        for sampler in self._drawn_by:
            if getattr(sampler, "generator", self) is None:
                sampler.generator = torch.Generator()

    def set_sampler(self, sampler: Any) -> None:
        """Set the sampler that yields single indices, under all batch samplers."""
        if self.loader.batch_sampler is not None:
            self.loader.__dict__["sampler"] = sampler  # torch forbids setting it as an attribute
        self.batch_sampler.sampler = sampler

    def set_epoch(self, epoch: int) -> None:
        """Call ``set_epoch`` of the batch sampler, the sampler and the data set that have one."""
        for source in (self.batch_sampler, self.sampler, self.loader.dataset):
            if hasattr(source, "set_epoch"):
                source.set_epoch(epoch)


@dataclass(frozen=True, slots=True)
class Resumption:
    """The start of a pass, or its progress.

    Args:
        position: The first sample that has not been read.
        order: The state that the order of the epoch is drawn from, None if it has not been drawn.
        states: States of data set and loader at that position, so that nothing need be read again.
        num_workers: Workers that have read the epoch so far, None if unknown.
        num_ranks: Ranks that have read the epoch so far.
        is_complete: Whether the epoch is known to have ended there.
    """

    position: Position = START
    order: torch.Tensor | None = None
    states: ReadStates = NO_STATES
    num_workers: int | None = None
    num_ranks: int = 1
    is_complete: bool = False


FROM_START = Resumption()


@dataclass(slots=True)
class Pass:
    """One pass of one rank, which is under way or was left early.

    Args:
        start: Its first position.
        step_size: The size of a full step of all ranks.
        num_ranks: Ranks that share the data.
        order: The source of the order.
        read_states: Returns the current states of data set and loader.
        step: The step of the batch that was yielded last, None before the first.
    """

    start: Position
    step_size: Position
    num_ranks: int
    order: EpochOrder
    read_states: Callable[[], ReadStates]
    step: StepInfo | None = None

    @property
    def position(self) -> Position:
        """The end of the last batch that was yielded."""
        return self.start if self.step is None else self.step.end

    def reached(self) -> Resumption:
        """Return the resumption after the last batch that was yielded."""
        step, order = self.step, self.order.state
        if step is None:
            return Resumption(self.start, order, num_ranks=self.num_ranks)
        states = self.read_states() if step.states is None else step.states
        return Resumption(step.end, order, states, num_ranks=self.num_ranks, is_complete=step.ends_epoch)


@dataclass(slots=True)
class Progress:
    """The progress of a loader. Loaders made from it by skipping share it, so they count the same epochs.

    Args:
        epoch: The current epoch, or between epochs the next one.
        resumption: The start of the next pass.
        current: The pass of this epoch, which is under way or was left early.
        running: The latest pass if it has neither ended nor been left, of any epoch.
    """

    epoch: int = 0
    resumption: Resumption = FROM_START
    current: Pass | None = None
    running: Pass | None = None

    def start(self, new: Pass) -> None:
        """Start a pass."""
        self.resumption, self.current, self.running = FROM_START, new, new

    def end(self, ended: Pass | None) -> None:
        """End a pass, complete or not; it may be an earlier one, whose iterator was kept."""
        if ended is self.running:
            self.running = None

    def resume(self, epoch: int, resumption: Resumption) -> None:
        """Set the start of the next pass."""
        self.epoch, self.resumption, self.current = epoch, resumption, None

    def finish_epoch(self) -> None:
        """Go to the start of the next epoch."""
        self.choose_epoch(self.epoch + 1)

    def choose_epoch(self, epoch: int) -> None:
        """Go to ``epoch``. The position is kept if it is the current one."""
        if epoch != self.epoch:
            self.resume(epoch, FROM_START)

    def detached(self) -> Progress:
        """Return the same without the pass, for another process."""
        return Progress(self.epoch, self.resumption)

    @property
    def position(self) -> Position:
        """How much of the epoch has been read."""
        return (self.current or self.resumption).position

    def reached(self) -> Resumption:
        """Return the resumption of the epoch."""
        return self.resumption if self.current is None else self.current.reached()


def save_progress(
    progress: Progress, source: Source, ranks: DataRanks, *, is_per_rank: bool, keeps_dataset_state: bool
) -> dict[str, Any]:
    """Return the state of a loader: numbers, strings, and the state of a data set that has one.

    It is valid for this rank only if it ``is_per_rank``. The next pass continues from the state of the data set if
    that is kept.
    """
    reached, sampler, generator = progress.reached(), source.sampler, source.generator
    dataset, num_workers = reached.states.dataset, source.loader.num_workers
    if dataset is None and not source.is_stream and source.has_state:
        dataset = source.dataset.state_dict()
        is_known = reached.position == START or reached.states.loader is not None
        if keeps_dataset_state and num_workers and not is_known:
            warn_user(
                f"The state of the data set `{type(source.dataset).__name__}` in its {num_workers} workers is not "
                "saved, only the position. Pass `use_stateful_dataloader=True` to save it.",
            )
    order, seed, is_drawn = reached.order, None, reached.order is not None
    if isinstance(sampler, SeedableRandomSampler):
        order, seed, is_drawn = None, sampler.initial_seed, False  # the order follows from seed and epoch
    elif order is None and generator is not None:
        order = generator.get_state()
    return {
        "version": VERSION,
        "epoch": progress.epoch,
        "samples": reached.position.samples,
        "batches": reached.position.batches,
        "num_processes": ranks.num_ranks,
        "rank": ranks.rank if is_per_rank else None,
        "num_samples": source.num_samples,
        "seed": seed,
        "generator": None if order is None else base64.b64encode(bytes(order.tolist())).decode("ascii"),
        "is_order_drawn": is_drawn,
        "has_generator": generator is not None,
        "dataset": dataset,
        "num_workers": num_workers,
        "loader": reached.states.loader,
        "is_complete": reached.is_complete,
    }


def load_progress(
    state: dict[str, Any],
    progress: Progress,
    source: Source,
    ranks: DataRanks,
    *,
    is_per_rank: bool,
    position: bool,
) -> None:
    """Set ``progress`` so that the next pass starts at the position in ``state``.

    Raises:
        CheckpointError: If the state is of another version, of a data set of another length, of another rank, or
            has the states of another number of workers.
    """
    _check_format(state)
    if position:
        _check_rank(state, source, ranks, is_per_rank=is_per_rank)
        _check_data(state, source)
    sampler, generator, order = source.sampler, source.generator, None
    if isinstance(sampler, SeedableRandomSampler) and state["seed"] is not None:
        sampler.load_seed(state["seed"])
    if state["generator"] is not None:
        order = torch.tensor(list(base64.b64decode(state["generator"])), dtype=torch.uint8, device="cpu")
    if not state["is_order_drawn"]:
        if generator is not None and order is not None:
            generator.set_state(order)
        order = None
    elif order is not None and source.index_shard is not None:
        if state.get("has_generator", state["version"] == 1):
            # Release 0.2 set a generator on samplers: torch draws another order from its default one in the same state.
            source.keep_generator()
    if not source.is_stream and state["dataset"] is not None:
        source.dataset.load_state_dict(state["dataset"])
    if not position:
        progress.resume(state["epoch"], Resumption(order=order))
        return
    progress.resume(
        state["epoch"],
        Resumption(
            position=Position(state["samples"], state["batches"]),
            order=order,
            states=ReadStates(state["dataset"] if source.is_stream else None, state["loader"]),
            num_workers=state.get("num_workers"),
            num_ranks=state["num_processes"],
            is_complete=state["is_complete"],
        ),
    )


def _check_format(state: dict[str, Any]) -> None:
    if state.get("version") not in (1, VERSION):
        raise CheckpointError(
            f"The state of a data loader has version {state.get('version')!r}, "
            f"this release reads version {VERSION} and older ones. Load it with the release that wrote it."
        )
    missing = [key for key in _KEYS if key not in state]
    if missing:
        raise CheckpointError(
            f"The state of a data loader lacks `{'`, `'.join(missing)}`. Load the result of `state_dict` of a "
            "prepared loader."
        )


def _check_rank(state: dict[str, Any], source: Source, ranks: DataRanks, *, is_per_rank: bool) -> None:
    """Raise for the state of another rank, or of all ranks together if each has a state."""
    has_started = Position(state["samples"], state["batches"]) != START or state["is_complete"]
    if "rank" not in state or not has_started:
        return  # of an earlier version, or at the start of an epoch
    then, is_part = state["rank"], state["rank"] is not None
    if source.is_stream and is_part != is_per_rank:
        all_ranks, part = "all processes together", "one process, with a self-sharding data set"
        raise CheckpointError(
            f"The state was saved for {part if is_part else all_ranks}, but the loader here reads for "
            f"{part if is_per_rank else all_ranks}. Prepare it with the `dispatch_batches` of the saved run."
        )
    if source.is_stream and is_part and state["num_processes"] != ranks.num_ranks:
        raise CheckpointError(
            f"The state was saved with {state['num_processes']} processes. Resuming a self-sharding data set "
            f"with {ranks.num_ranks} is not possible: each process has a separate state. Use the same number, or "
            "`dispatch_batches=True` in both runs."
        )
    if is_part and is_per_rank and then != ranks.rank and state["num_processes"] == ranks.num_ranks:
        raise CheckpointError(
            f"The state was saved by process {then}, but this is process {ranks.rank}: each has a separate state. Load "
            "the result of `state_dict` on the same process."
        )


def _check_data(state: dict[str, Any], source: Source) -> None:
    """Raise for the state of a data set of another length, or of other workers' copies of map-style data."""
    here, there = source.num_samples, state["num_samples"]
    if None not in (here, there) and here != there:
        raise CheckpointError(
            f"The state of the data loader was saved with {there} samples, "
            f"but there are {here} now. Use the data set and the sampler of the saved run, or restart the "
            "epoch with `position=False`."
        )
    before, now = state.get("num_workers"), source.loader.num_workers
    if state["loader"] is not None and not source.is_stream and before != now:
        raise CheckpointError(
            f"The state of the data set was saved with `num_workers={before}`, each with a copy, and cannot be "
            f"restored with `num_workers={now}`. Use `num_workers={before}`, or restart "
            "the epoch with `position=False`."
        )


def to_file(loader: Any) -> dict[str, Any]:
    """Return the content of the file of a loader with `state_dict`, in a form that torchdata also reads."""
    is_under_way = bool(getattr(loader, "is_under_way", False))
    content = {_FILE_MARK: _FILE_VERSION, "is_under_way": is_under_way, "state": loader.state_dict()}
    if not hasattr(loader, "state_after"):
        return content
    # The state of a `StatefulDataLoader` without workers (torchdata 0.11).
    return {
        "_index_sampler_state": None,  # these names are of the snapshots of torchdata 0.11
        "_sampler_iter_state": None,
        "_sampler_iter_yielded": loader.num_batches_read,
        "_num_yielded": loader.num_batches_read,
        "_IterableDataset_len_called": None,
        "_shared_seed": None,
        "fetcher_state": None,
        "dataset_state": None,
        "_iterator_finished": False,
        **content,
    }


def load_into(loader: Any, content: Any, *, position: bool, file_name: str) -> bool:
    """Resume ``loader`` from the content of its file, and return whether a pass was under way when it was saved.

    A file of torchdata's `StatefulDataLoader`, as Accelerate writes it, has the number of batches but not their
    order.

    Args:
        loader: A prepared loader.
        content: The content of the file.
        position: Resume in the middle of the epoch, if it was saved there. If False the epoch restarts.
        file_name: For messages.

    Raises:
        CheckpointError: If the content is not the state of a loader.
    """
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"`{file_name}` contains a {type(content).__name__}, not the state of a loader. "
            "Copy the checkpoint again."
        )
    if _FILE_MARK in content:
        loader.load_state_dict(content["state"], position=position and content["is_under_way"])
        return bool(content["is_under_way"])
    num_batches = _batches_by_torchdata(content)
    if num_batches is None or not hasattr(loader, "state_after"):
        raise CheckpointError(
            f"`{file_name}` was written neither by this package nor by torchdata, so the position in the data is "
            "unknown. Skip the batches that were read with `skip_first_batches`."
        )
    if position:
        loader.load_state_dict(loader.state_after(num_batches), position=True)
    return num_batches > 0


def _batches_by_torchdata(content: Mapping[str, Any]) -> int | None:
    """Return how many batches a `StatefulDataLoader` had yielded; None if it did not write the content."""
    if content.get("_iterator_finished") is True:
        return 0
    snapshot = content.get("_snapshot")
    if isinstance(snapshot, Mapping):  # with workers
        counts = [snapshot.get("_snapshot_step"), content.get("_steps_since_snapshot")]
    else:
        counts = [content.get("_num_yielded")]
    numbers = [count for count in counts if isinstance(count, int)]
    return sum(numbers) if len(numbers) == len(counts) else None
