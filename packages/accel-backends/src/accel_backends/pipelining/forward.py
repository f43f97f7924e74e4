"""Inference with a model that is spread over the ranks: each has a stage, and batches pass through in chunks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from accel_backends.pipelining.chunks import in_chunks, joined
from accel_backends.pipelining.passing import Neighbour, zeros_like
from accel_backends.pipelining.stages import StagedModel
from accel_backends.pipelining.together import run_together
from accel_backends.pipelining.trace import NUM_TRACES, Trace
from accel_ops import broadcast, broadcast_object_list, send_to_device
from accel_ops.nested.describe import (
    get_data_structure,
    get_shape,
    ignorant_find_batch_size,
    initialize_tensors,
    iterate_tensors,
)
from accel_ops.transport import current_transport
from accel_state.errors import ConfigError

T = TypeVar("T")


class PipelinedForward:
    """The forward of a model whose stages are on different ranks. Every rank must call it, with the same inputs.

    Args:
        model: The whole model, on any device. The first call, or `place`, leaves in it what this rank needs.
        starts: Names of the modules with which the stages begin, from the second stage on; one stage per rank.
        device: Where this rank computes.
        num_chunks: In how many chunks a batch passes through the stages; one of fewer rows has a chunk per row.
        gather_output: Return the output on every rank, not on the last alone.

    Raises:
        ConfigError: If the model has no such module.
    """

    def __init__(
        self,
        model: nn.Module,
        starts: Sequence[str],
        *,
        device: torch.device,
        num_chunks: int,
        gather_output: bool,
    ) -> None:
        self._forward = model.forward
        self._has_cache = "use_cache" in inspect.signature(model.forward).parameters
        self._staged = StagedModel(model, starts, device=device)
        self._transport = current_transport()
        self._stage = self._transport.rank
        self._last = self._transport.world_size - 1
        self._device = device
        self._num_chunks = num_chunks
        self._gathers_output = gather_output
        self._kept: frozenset[int] | None = None
        self._traces: dict[str, Trace] = {}

    def place(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Keep the stage of this rank on its device, as calls like this one use it. No communication.

        Raises:
            ConfigError: If the forward cannot be cut where it was told to.
        """
        self._trace(*self._inputs(args, kwargs))

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
        inputs = self._inputs(args, kwargs)
        chunks = in_chunks(inputs, ignorant_find_batch_size(inputs) or 1, num_chunks)
        shapes = repr(get_shape(inputs))
        traces = self._together(lambda: [self._trace(*chunk) for chunk in chunks], shapes)
        output = self._together(lambda: self._pass_through(chunks, traces), shapes)
        if not gather_output:
            return output
        structure = broadcast_object_list([get_data_structure(output)], from_process=self._last)[0]
        if self._stage != self._last:
            output = send_to_device(initialize_tensors(structure), self._device)
        broadcast(list(iterate_tensors(output)), from_process=self._last)  # in place
        return output

    def _inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the inputs on this rank's device; without a cache, of which each rank would have a part."""
        if self._has_cache and kwargs.get("use_cache"):
            raise ConfigError(
                "A pipelined model keeps no cache of keys and values: each rank would have that of its own layers "
                "only. Leave `use_cache` out, or generate with the model as it was before `prepare_pippy`."
            )
        kwargs = {**kwargs, "use_cache": False} if self._has_cache else dict(kwargs)
        return send_to_device(tuple(args), self._device), send_to_device(kwargs, self._device)

    def _trace(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Trace:
        key = repr(get_data_structure((args, kwargs)))
        if key not in self._traces:
            if len(self._traces) == NUM_TRACES:
                self._traces.pop(next(iter(self._traces)))
            trace = self._staged.trace(partial(self._forward, *args, **kwargs))
            used = {number for number, users in enumerate(trace.users) if self._stage in users}
            if self._kept is None:
                self._kept = frozenset(used)
                self._staged.keep(used)
            elif not used <= self._kept:
                raise ConfigError(
                    f"With these inputs stage {self._stage} computes with parameters that it did not need for the "
                    "first ones, and that this rank has dropped. Pass inputs like these as `example_args` and "
                    "`example_kwargs`."
                )
            self._traces[key] = trace
        return self._traces[key]

    def _pass_through(self, chunks: Sequence[Any], traces: Sequence[Trace]) -> Any:
        """Run this rank's stage for all chunks; return the output on the last rank. All ranks together.

        Other ranks count on what this one sends: if it fails, it sends zeros until all chunks are through.
        """
        previous, following = Neighbour(self._stage - 1), Neighbour(self._stage + 1)
        outputs: list[Any] = []
        error: BaseException | None = None
        for (args, kwargs), trace in zip(chunks, traces, strict=True):
            received: Sequence[torch.Tensor] = ()
            if self._stage > 0:
                received = previous.receive(trace.handovers[self._stage - 1].like, device=self._device)
            if error is None:
                try:
                    call = partial(self._forward, *args, **kwargs)
                    output = self._staged.run(self._stage, call, received, trace)
                    outputs.append(output.result)
                except BaseException as raised:  # noqa: BLE001 - raised again below
                    error = raised
            if self._stage < self._last:
                like = trace.handovers[self._stage].like
                following.send(output.tensors if error is None else zeros_like(like, self._device))
        following.finish()
        if error is not None:
            raise error
        if self._stage < self._last:
            return None
        return joined(outputs, [ignorant_find_batch_size(chunk) or 1 for chunk in chunks])

    def _together(self, compute: Callable[[], T], shapes: str) -> T:
        return run_together(
            self._transport,
            compute,
            operation=PipelinedForward.__call__,
            inputs=shapes,
            partners=range(self._transport.world_size),
        )
