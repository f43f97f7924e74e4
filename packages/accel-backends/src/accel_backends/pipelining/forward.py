"""Inference with a model that is spread over the ranks: each has a stage, and batches pass through in chunks."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from accel_backends.pipelining.chunks import in_chunks, joined
from accel_backends.pipelining.handovers import ForwardMessages, KnownHandovers, shape_of
from accel_backends.pipelining.passing import Neighbour
from accel_backends.pipelining.stages import StagedModel, refuse_collected
from accel_backends.pipelining.together import run_together
from accel_backends.plans.stages import Stages
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
        model: The model, on any device; it keeps the values of this rank's stage.
        stages: Its stages, one for each rank.
        device: Where this rank computes.
        num_chunks: In how many chunks a batch passes through the stages; one of fewer rows has a chunk per row.
        gather_output: Return the output on every rank, not on the last alone.
    """

    def __init__(
        self, model: nn.Module, stages: Stages, *, device: torch.device, num_chunks: int, gather_output: bool
    ) -> None:
        self.starts = stages.starts
        self._forward = model.forward
        self._refuse_collected = partial(refuse_collected, weakref.proxy(model))  # type: ignore[arg-type] # which holds this
        self._has_cache = "use_cache" in inspect.signature(model.forward).parameters
        self._transport = current_transport()
        self._stage = self._transport.rank
        self._last = self._transport.world_size - 1
        self._staged = StagedModel(
            model, stages, device=device, place=self._stage, num_ranks=self._transport.world_size
        )
        for found in self._staged.tensors:
            if self._staged.is_held(found):
                found.tensor.data = found.tensor.data.to(device)
            else:
                self._staged.drop(found)
        self._device = device
        self._num_chunks = num_chunks
        self._gathers_output = gather_output
        self._known = KnownHandovers()

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
        kinds = self._together(lambda: list(map(shape_of, chunks)), shapes)
        output = self._together(lambda: self._pass_through(chunks, kinds), shapes)
        if not gather_output:
            return output
        structure = broadcast_object_list([get_data_structure(output)], from_process=self._last)[0]
        if self._stage != self._last:
            output = send_to_device(initialize_tensors(structure), self._device)
        broadcast(list(iterate_tensors(output)), from_process=self._last)  # in place
        return output

    def _inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the inputs on this rank's device; without a cache, of which each rank would have a part."""
        self._refuse_collected(args, kwargs)
        if self._has_cache and kwargs.get("use_cache"):
            raise ConfigError(
                "A pipelined model keeps no cache of keys and values: each rank would have that of its own layers "
                "only. Leave `use_cache` out, or generate with the model as it was before `prepare_pippy`."
            )
        kwargs = {**kwargs, "use_cache": False} if self._has_cache else dict(kwargs)
        return send_to_device(tuple(args), self._device), send_to_device(kwargs, self._device)

    def _pass_through(self, chunks: Sequence[Any], kinds: Sequence[str]) -> Any:
        """Run this rank's stage for all chunks; return the output on the last rank. All ranks together.

        On failure, it continues to send zeros, so that other ranks do not wait for ever.
        """
        previous, following = Neighbour(self._stage - 1), Neighbour(self._stage + 1)
        messages = ForwardMessages(self._staged, self._known, kinds, self._device)
        outputs: list[Any] = []
        error: BaseException | None = None
        for number, (args, kwargs) in enumerate(chunks):
            received: list[torch.Tensor | None] = []
            if self._stage > 0:
                tensors = messages.receive(previous, self._stage - 1, number)
                received = messages.handover(self._stage - 1, number).with_none(tensors)
            values: tuple[torch.Tensor | None, ...] | None = None
            if error is None and not messages.has_lost:
                try:
                    call = partial(self._forward, *args, **kwargs)
                    output = self._staged.run(self._stage, call, received)
                    if self._stage == self._last:
                        outputs.append(output.result)
                    else:
                        messages.check(self._stage, number, output.values)
                        values = output.values
                except BaseException as raised:  # noqa: BLE001 - raised again below
                    error = raised
            if self._stage < self._last:
                messages.send(following, self._stage, number, values)
        following.finish()
        if error is not None:
            raise error
        if self._stage < self._last or messages.has_lost:
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
