"""Pipelined inference: each process computes a stage of the model, and batches pass through in chunks."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from accel_backends.pipeline.pipeline import Pipeline
from accel_backends.pipeline.schedule_run import PipelinePlace
from accel_backends.pipeline.stages import StagedModel, refuse_collected
from accel_backends.plans.sources import resolve_plan
from accel_backends.plans.stages import Stages, stages_of
from accel_ops import send_to_device
from accel_ops.nested.describe import ignorant_find_batch_size
from accel_state import PartialState
from accel_state.errors import ConfigError


def prepare_pippy(
    model: nn.Module,
    split_points: str | Sequence[str] | None = "auto",
    no_split_module_classes: Sequence[str] | None = None,
    example_args: Sequence[Any] | None = (),
    example_kwargs: Mapping[str, Any] | None = None,
    num_chunks: int | None = None,
    gather_output: bool | None = False,
) -> nn.Module:
    """Split a model into pipeline stages for inference, one for each process.

    Batches pass through the stages in chunks, so that all processes compute at the same time. Every process must build
    the same model, call this, and then call the model with the same inputs. The last process returns the output, the
    others None.

    Args:
        model: In evaluation mode, on the CPU. It is changed: it keeps the parameters of this process's stage, on its
            device, and can only compute outputs.
        split_points: The blocks with which the second and all further stages begin, in the order in which the forward
            calls them; or `auto`: stages of about the same size.
        no_split_module_classes: With `auto`, names of classes that stay on one process, as repeated blocks do anyway.
        example_args: Not needed: the stages are known without a run.
        example_kwargs: The same.
        num_chunks: Chunks of a batch, which they need not divide; as many as processes if omitted.
        gather_output: Return the output on every process.

    Returns:
        ``model``.

    Raises:
        ConfigError: If the model cannot be split there; with the reason.
    """
    processes = PartialState()
    num_chunks = processes.num_processes if num_chunks is None else num_chunks
    if num_chunks < 1:
        raise ConfigError(f"`num_chunks` must be at least 1, got {num_chunks}.")
    if processes.num_processes == 1:
        return model.to(processes.device)
    forward = _pipeline(
        model,
        split_points,
        no_split_module_classes or (),
        num_chunks=num_chunks,
        gather_output=bool(gather_output),
    )
    model.forward = forward
    model.hf_split_points = list(forward.starts)  # type: ignore[assignment] # where users look for them
    return model


def build_pipeline(
    model: nn.Module,
    split_points: str | Sequence[str] | None,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    num_chunks: int,
) -> PipelinedForward:
    """Return the forward of a model in pipeline stages, for `pippy_forward`, with the arguments of `prepare_pippy`."""
    return _pipeline(model, split_points, (), num_chunks=num_chunks, gather_output=False)


def pippy_forward(
    forward: PipelinedForward, num_chunks: int, gather_output: bool, *args: Any, **kwargs: Any
) -> Any:
    """Return the output of a batch on the last process, or with ``gather_output`` on every process; None elsewhere.

    ``forward`` is from `build_pipeline`, or that of a model that `prepare_pippy` returned.
    """
    return forward.run(args, kwargs, num_chunks=num_chunks, gather_output=gather_output)


def find_pippy_batch_size(args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> int | None:
    """Return the number of rows of the first tensor among the inputs of a model, None if there is none."""
    return ignorant_find_batch_size((args or (), kwargs or {}))


class PipelinedForward:
    """The forward of a model whose stages are on different ranks. Every rank must call it, with the same inputs.

    The model, on any device, keeps the values of this rank's stage. A batch of fewer rows than chunks has one per row.
    """

    def __init__(
        self,
        model: nn.Module,
        stages: Stages,
        processes: PartialState,
        *,
        num_chunks: int,
        gather_output: bool,
    ) -> None:
        self.starts = stages.starts
        self._forward = model.forward
        self._refuse_collected = partial(refuse_collected, weakref.proxy(model))  # type: ignore[arg-type] # which holds this
        self._has_cache = "use_cache" in inspect.signature(model.forward).parameters
        self._device = processes.device
        self._num_chunks = num_chunks
        self._gathers_output = gather_output
        rank, num_ranks = processes.process_index, processes.num_processes
        staged = StagedModel(model, stages, device=self._device, place=rank, num_ranks=num_ranks)
        for found in staged.tensors:
            if staged.is_held(found):
                found.tensor.data = found.tensor.data.to(self._device)
            else:
                staged.drop(found)
        place = PipelinePlace(tuple(range(num_ranks)), rank)
        self._pipeline = Pipeline(staged, "gpipe", place=place, device=self._device)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output on the last rank, or on every rank; None elsewhere.

        Raises:
            ConfigError: If the output cannot be put together from chunks; ``num_chunks=1`` takes any.
            DistributedOperationException: If another rank failed; that rank raises its own error.
        """
        return self.run(args, kwargs, num_chunks=self._num_chunks, gather_output=self._gathers_output)

    def run(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, num_chunks: int, gather_output: bool
    ) -> Any:
        """Do the same with other options than those of the constructor."""
        self._refuse_collected(args, kwargs)
        if self._has_cache and kwargs.get("use_cache"):
            raise ConfigError(
                "A pipelined model keeps no cache of keys and values: each rank would have that of its own layers "
                "only. Leave `use_cache` out, or generate with the model as it was before `prepare_pippy`."
            )
        kwargs = {**kwargs, "use_cache": False} if self._has_cache else dict(kwargs)
        inputs = send_to_device(tuple(args), self._device), send_to_device(kwargs, self._device)
        return self._pipeline.forward(self._forward, inputs, num_chunks=num_chunks, everywhere=gather_output)


def _pipeline(
    model: nn.Module,
    split_points: str | Sequence[str] | None,
    no_split_module_classes: Sequence[str],
    *,
    num_chunks: int,
    gather_output: bool,
) -> PipelinedForward:
    processes = PartialState()
    num_stages = processes.num_processes
    is_auto = split_points is None or split_points == "auto"
    if not is_auto and (isinstance(split_points, str) or len(split_points or ()) != num_stages - 1):
        raise ConfigError(
            f"`split_points` must be `auto` or name {num_stages - 1} modules, one for each of the {num_stages} "
            f"processes but the first, got {split_points!r}."
        )
    stages = stages_of(
        model,
        resolve_plan(model),
        num_stages,
        split_points=None if is_auto else split_points,
        no_split_module_classes=no_split_module_classes,
    )
    return PipelinedForward(model, stages, processes, num_chunks=num_chunks, gather_output=gather_output)
