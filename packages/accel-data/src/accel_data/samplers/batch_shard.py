"""The batches of one rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler

from accel_data.samplers import torchdata
from accel_data.samplers.order import draw_order, draw_seed, has_order
from accel_data.samplers.pass_generator import PassGenerator, drawing_from, own_generator, wants_generator
from accel_data.samplers.plan import ShardPlan
from accel_data.samplers.run import Position, SamplerRun, StreamedStep
from accel_data.samplers.shared_order import check_same_order, share_generator
from accel_data.samplers.stream import StreamSharding
from accel_state.errors import ConfigError

#: Indices of an order given as a list that the ranks compare.
_NUM_COMPARED = 1024


class BatchSamplerShard(BatchSampler):
    """Yield the batches of one rank, so that all ranks together read the given batches in their order.

    On two processes, with batches ``[0, 1, 2, 3], [4, 5, 6, 7]``, process 0 yields ``[0, 1, 2, 3]`` and
    process 1 ``[4, 5, 6, 7]``; with ``split_batches`` process 0 yields ``[0, 1], [4, 5]`` and process 1 ``[2,
    3], [6, 7]``.

    Args:
        batch_sampler: Yields lists of indices. Its ``batch_size`` and ``drop_last`` are used where it has
            them. With ``drop_last`` only steps in which every rank has a full batch are kept.
        num_processes: Ranks that share the batches.
        process_index: The rank of this shard.
        split_batches: Cut each batch into one piece for each rank, instead of dealing whole batches.
        even_batches: Complete the last step with samples from the beginning, so that all ranks get equally
            many, equally large batches. May be set between epochs.

    Raises:
        ConfigError: If a batch cannot be split evenly, or is to be made even without a ``batch_size``.
    """

    def __init__(
        self,
        batch_sampler: BatchSampler | Iterable[list[int]],
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        even_batches: bool = True,
    ) -> None:
        size = getattr(batch_sampler, "batch_size", None)
        if split_batches and size is not None and size % num_processes:
            raise ConfigError(
                "`split_batches` needs a batch size that is a multiple of the number of processes "
                f"({num_processes}), got {size}. Change the batch size or pass `split_batches=False`."
            )
        if not 0 <= process_index < num_processes:
            raise ConfigError(
                f"`process_index` must lie between 0 and {num_processes - 1}, got {process_index}."
            )
        if size is None and even_batches:
            raise ConfigError(
                "`even_batches` needs a batch sampler with a `batch_size`, and this one has none. "
                "Pass `even_batches=False`, or give the batch sampler the attribute."
            )
        self.batch_sampler = batch_sampler
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.even_batches = even_batches
        self._next_run: SamplerRun | None = None

    @property
    def batch_size(self) -> int | None:  # type: ignore[override]
        """Batch size of the given sampler, None if it has none."""
        return getattr(self.batch_sampler, "batch_size", None)

    @property
    def drop_last(self) -> bool:  # type: ignore[override]
        """Whether the given sampler leaves out a short last batch."""
        return bool(getattr(self.batch_sampler, "drop_last", False))

    @property
    def rows_per_rank(self) -> int | None:
        """Rows of one rank in a full step, None if they vary."""
        size = self.batch_size
        return size // self.num_processes if size is not None and self.split_batches else size

    @property
    def batches_per_step(self) -> int:
        """Batches of the given sampler that all ranks read together in one step."""
        return 1 if self.split_batches else self.num_processes

    @property
    def total_length(self) -> int:
        """Batches of the given sampler."""
        return len(self.batch_sampler)  # type: ignore[arg-type]

    def __len__(self) -> int:
        if self.split_batches:
            # A batch shorter than its share leaves the later ranks without a piece.
            plan = self._plan(Position())
            return self.total_length if plan is None else plan.num_own_steps
        rounds, rest = divmod(self.total_length, self.num_processes)
        if self.drop_last or not rest:
            return rounds
        return rounds + (self.even_batches or self.process_index < rest)

    def __iter__(self) -> Iterator[list[int]]:
        # Taken at the first batch, not here: torch's loader makes an iterator that it never uses before the
        # one it does.
        run, self._next_run = self._next_run, None
        if run is None:
            run = SamplerRun(Position(), self._plan(Position()), self.batches_per_step)
        yield from self._planned(run, run.plan) if run.plan is not None else self._streamed(run)

    def __getattr__(self, name: str) -> Any:
        # What a batch sampler of the user offers beside batches stays within reach.
        if name.startswith("__") or "batch_sampler" not in self.__dict__:
            raise AttributeError(
                f"`{type(self).__name__}` object has no attribute `{name}`.", name=name, obj=self
            )
        return getattr(self.batch_sampler, name)

    @property
    def can_start_anywhere(self) -> bool:
        """Whether a pass from the middle of an epoch takes no longer than one from its start."""
        return self._plan(Position()) is not None

    @property
    def total_samples(self) -> int:
        """Length of the epoch, where it can be entered anywhere."""
        plan = self._plan(Position())
        assert plan is not None, "asked for a sampler whose order is known"
        return plan.num_samples

    def begin_run(
        self, start: Position, *, order_state: torch.Tensor | None = None, is_shared: bool = False
    ) -> SamplerRun:
        """Announce that the iterator whose first batch is asked for next begins at ``start``.

        With ``is_shared`` every rank has to ask for that batch: the ranks agree on the order then.
        """
        plan = self._plan(start)
        self._next_run = SamplerRun(
            start, plan, self.batches_per_step, order_state=order_state, is_shared=is_shared
        )
        return self._next_run

    def position_after(self, steps: int) -> Position:
        """Return where the epoch stands when every rank has read ``steps`` batches."""
        plan = self._plan(Position())
        batches = steps * self.batches_per_step
        return Position(
            plan.consumed(steps) if plan is not None else batches * (self.batch_size or 0), batches
        )

    @property
    def generator(self) -> torch.Generator | None:
        """The generator that the order is drawn from, if the given sampler has one."""
        for source in self._sources():
            if (generator := own_generator(source)) is not None:
                return generator
        return None

    @property
    def draws_from_default(self) -> bool:
        """Whether the order is drawn from torch's default generator, as far as can be told."""
        return self.generator is None and any(map(wants_generator, self._sources()))

    def draw_unread(self) -> None:
        """Move torch's default generator as a pass does, on a rank that another one reads for."""
        if not self.draws_from_default:
            return
        flat = self._flat_sampler()
        if isinstance(flat, RandomSampler) or not has_order(flat):
            draw_seed()
        else:
            draw_order(flat)

    def _sources(self) -> list[Any]:
        """What may have a generator."""
        return [getattr(self.batch_sampler, "sampler", None), self.batch_sampler]

    def _plan(self, start: Position) -> ShardPlan | None:
        sampler = self._flat_sampler()
        if sampler is None or not has_order(sampler):
            return None
        rows = self.rows_per_rank
        assert rows is not None, "torch's batch sampler has a batch size"
        return ShardPlan(
            num_samples=len(sampler),
            rows=rows,
            num_ranks=self.num_processes,
            rank=self.process_index,
            even=self.even_batches,
            drop_last=self.drop_last,
            start=start.samples,
        )

    def _flat_sampler(self) -> Any:
        """The sampler whose indices torch's own batch sampler, or torchdata's, cuts into batches; None for other
        batch samplers.
        """
        given: Any = self.batch_sampler
        is_flat = type(given).__iter__ is BatchSampler.__iter__ or torchdata.makes_batches(given)
        return given.sampler if is_flat else None

    def _begin_draw(self, run: SamplerRun) -> PassGenerator | None:
        """Note the state that the order is drawn from, and return what stands in for torch's default generator.

        None: the sampler has a generator of its own, or takes none.
        """
        run.has_drawn = True
        generator = self.generator
        if generator is not None:
            if run.order_state is None:
                run.order_state = generator.get_state()
            else:
                generator.set_state(run.order_state)
            return None
        if not self.draws_from_default:
            return None
        sampler = getattr(self.batch_sampler, "sampler", None)
        seeds_itself = isinstance(sampler, RandomSampler)
        if run.plan is None and not run.is_shared and not seeds_itself:
            return None  # only the sampler knows how it draws from the default generator
        stand_in = PassGenerator()
        if run.order_state is not None:
            stand_in.set_state(run.order_state)
            return stand_in
        if run.plan is None or seeds_itself:
            stand_in.manual_seed(draw_seed())
        else:
            stand_in.set_state(torch.get_rng_state())
        if run.is_shared:
            share_generator(stand_in)
        run.order_state = stand_in.get_state()
        return stand_in

    def _planned(self, run: SamplerRun, plan: ShardPlan) -> Iterator[list[int]]:
        sampler, is_fresh = self._flat_sampler(), run.order_state is None
        stand_in = self._begin_draw(run)
        order = draw_order(sampler, stand_in)
        assert order is not None, "a plan is made where the order is known"
        state = run.order_state
        if (
            stand_in is not None
            and state is not None
            and is_fresh
            and torch.equal(torch.get_rng_state(), state)
        ):
            # The sampler would have drawn all of it from the default generator.
            torch.set_rng_state(stand_in.get_state())
        if run.is_shared and isinstance(sampler, (list, tuple)):
            check_same_order(sampler, order[:_NUM_COMPARED])
        for step in range(plan.num_own_steps):
            yield plan.indices(order, step)
        finish = getattr(order, "finish", None)
        if finish is not None:
            finish()

    def _streamed(self, run: SamplerRun) -> Iterator[list[int]]:
        stand_in = self._begin_draw(run)
        if stand_in is None:
            yield from self._steps(run)
            return
        with drawing_from(stand_in, [source for source in self._sources() if wants_generator(source)]):
            yield from self._steps(run)

    def _steps(self, run: SamplerRun) -> Iterator[list[int]]:
        flat = self._flat_sampler()
        source = self.batch_sampler if flat is None else flat
        sharding = StreamSharding(
            num_ranks=self.num_processes,
            rows=self.rows_per_rank,
            split=self.split_batches,
            even=self.even_batches,
            drop_last=self.drop_last,
            source=type(source).__name__,
        )
        end = run.start
        batches, head = self._remaining_batches(run.start)
        if run.is_shared and not self._is_agreed(source):
            first = list(islice(batches, self.num_processes))
            check_same_order(source, first)
            batches = chain(first, batches)
        for step in sharding.steps(batches, head=head):
            end = Position(end.samples + step.shape.num_real, end.batches + step.num_batches)
            if not step.pieces[self.process_index]:
                return
            following = step.num_following
            run.steps.append(
                StreamedStep(step.shape, self.process_index >= following, following < self.num_processes, end)
            )
            yield step.pieces[self.process_index]

    def _is_agreed(self, source: Any) -> bool:
        """Tell whether ``source``, which is iterated, and what is below it draw from shared generators."""
        return hasattr(source, "generator") and all(
            getattr(one, "generator", source) is not None for one in self._sources()
        )

    def _remaining_batches(self, start: Position) -> tuple[Iterator[list[int]], list[int] | None]:
        """Return the batches after ``start``, and the beginning of the epoch where it lies before them."""
        flat = self._flat_sampler()
        full_rows = (self.rows_per_rank or 0) * self.num_processes
        if flat is not None:
            indices = iter(flat)
            head = list(islice(indices, min(full_rows, start.samples)))
            skip = start.samples - len(head)
            next(islice(indices, skip, skip), None)
            size = self.batch_size
            assert size is not None, "torch's batch sampler has a batch size"
            return iter(BatchSampler(indices, size, self.drop_last)), head or None
        batches = iter(self.batch_sampler)
        head = []
        for batch in islice(batches, start.batches):
            head += batch[: max(0, full_rows - len(head))]
        return batches, head or None
