"""What is known of a run when a model is prepared, gathered in one place for the filling of its config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accel_backends.plugins.deepspeed.facts import Facts, Said
from accel_backends.strategies.context import StrategyContext
from accel_backends.strategies.deepspeed.dummies import DummyOptim, DummyScheduler
from accel_backends.strategies.deepspeed.pairing import Part

_UNTRAINED = "a model that is not trained"


def gather_facts(part: Part, *, loaders: Sequence[Any], context: StrategyContext) -> Facts:
    """Return what the run says about the config of one engine.

    Args:
        part: The model, with its optimizer and scheduler.
        loaders: The loaders of the same call of `prepare`, before they are prepared.
        context: The run.
    """
    num_data_ranks = context.layout.num_data_ranks
    sizes, num_steps = _micro_batch_sizes(loaders, context), context.gradient.num_steps
    steps = Said(num_steps, f"`Accelerator(gradient_accumulation_steps={num_steps})`", num_steps == 1)
    if part.optimizer is None:  # the config must have both, though nothing depends on them
        sizes = sizes or Said((1,), _UNTRAINED, is_default=True)
        steps = Said(1, _UNTRAINED, is_default=True)
    return Facts(
        num_data_ranks=Said(num_data_ranks, f"a run on {num_data_ranks} data ranks"),
        micro_batch_sizes=sizes,
        gradient_accumulation_steps=steps,
        mixed_precision=Said(
            context.precision.name,
            f"`mixed_precision={context.precision.name!r}`",
            is_default=context.precision.name == "no",
        ),
        hidden_sizes=_hidden_sizes(part.model),
        num_schedule_ranks=_num_schedule_ranks(context),
        **_of_dummies(part),
    )


def _micro_batch_sizes(loaders: Sequence[Any], context: StrategyContext) -> Said | None:
    sizes = [size for loader in loaders if (size := _batch_size(loader)) is not None]
    if not sizes:
        return None
    # A batch that is split counts for all ranks together.
    parts = context.layout.num_data_ranks if context.scheduling.split_batches else 1
    return Said(tuple(max(size // parts, 1) for size in sizes), "the batch sizes of the loaders")


def _batch_size(loader: Any) -> int | None:
    size = getattr(loader, "batch_size", None)
    if size is None:
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else None


def _hidden_sizes(model: Any) -> Said | None:
    config = getattr(model, "config", None)
    for section in (config, getattr(config, "text_config", None)):
        one, several = getattr(section, "hidden_size", None), getattr(section, "hidden_sizes", None)
        sizes = tuple(several or ()) if one is None else (one,)
        if sizes:
            return Said(sizes, f"`{type(model).__name__}`")
    return None


def _num_schedule_ranks(context: StrategyContext) -> int:
    settings = context.scheduling
    once = settings.split_batches or settings.unit == "optimizer_step"
    return 1 if once else context.layout.num_data_ranks


def _of_dummies(part: Part) -> dict[str, Any]:
    said: dict[str, Any] = {}
    optimizer, scheduler = part.optimizer, part.scheduler
    if isinstance(optimizer, DummyOptim):
        # Its own defaults are no wish of the user's.
        said["learning_rate"] = Said(optimizer.lr, "`DummyOptim(lr=...)`", optimizer.lr == 0.001)
        said["weight_decay"] = Said(
            optimizer.weight_decay, "`DummyOptim(weight_decay=...)`", optimizer.weight_decay == 0
        )
        for name in ("betas", "eps"):
            if name in optimizer.kwargs:
                said[name] = Said(optimizer.kwargs[name], f"`DummyOptim({name}=...)`")
    if isinstance(scheduler, DummyScheduler):
        said["warmup_num_steps"] = Said(
            scheduler.warmup_num_steps,
            "`DummyScheduler(warmup_num_steps=...)`",
            scheduler.warmup_num_steps == 0,
        )
        if scheduler.total_num_steps is not None:
            said["total_num_steps"] = Said(scheduler.total_num_steps, "`DummyScheduler(total_num_steps=...)`")
    return said
