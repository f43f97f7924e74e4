"""The reading rank's side of a dispatched epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from accel_data.dispatch.dealing import Deal, Dealer
from accel_data.dispatch.deferred import DeferredError
from accel_data.dispatch.messages import Kind, Messages, Step
from accel_data.loaders.tagging import Note
from accel_ops.nested.structures import recursively_apply


@dataclass(frozen=True, slots=True)
class Read:
    """A step that has been read, and what was noted right after each of its batches."""

    deal: Deal
    notes: list[Note]
    loader_state: Any


def read_steps(
    batches: Iterator[tuple[Any, Note | None]],
    dealer: Dealer,
    *,
    drop_last: bool,
    loader_state: Callable[[], Any] | None,
) -> Iterator[Read]:
    """Yield the steps of an epoch, having read no further.

    Args:
        batches: The whole data: batches with their notes.
        dealer: Cuts it.
        drop_last: Leave out a last step with too few batches.
        loader_state: Returns the state of a stateful loader.
    """
    head: list[Any] = []
    while group := list(islice(batches, dealer.batches_per_step)):
        if drop_last and len(group) < dealer.batches_per_step:
            return
        plain = [batch for batch, _ in group]
        if dealer.even and not head:
            # Copies: a rank may change its batch of the first step in place.
            head = [recursively_apply(torch.clone, batch) for batch in plain]
        sizes = [None if note is None else note.num_samples for _, note in group]
        notes = [note for _, note in group if note is not None]
        yield Read(dealer.deal(plain, head, sizes), notes, None if loader_state is None else loader_state())


def send_steps(steps: Iterator[Read], messages: Messages | None, *, rank: int) -> Iterator[tuple[Step, Read]]:
    """Yield this rank's steps and send all ranks theirs.

    The step after the next is read right after a step was sent: the other ranks work meanwhile, and the next
    step is ready when they ask for it. An error while reading is raised where its step would have come: until
    then all ranks go on.

    Args:
        steps: The epoch.
        messages: The way to the other ranks, None if there are none.
        rank: Of the pieces, the one for this rank.
    """
    deferred = DeferredError()
    current, following = _next(steps, deferred), _next(steps, deferred)
    if current is None:
        _end(messages, deferred)
    while current is not None:
        num_following = current.deal.num_with_batch if deferred.error else 0
        if following is not None:
            num_following = following.deal.num_with_batch
        if messages is not None:
            messages.send(current.deal, num_following=num_following)
        upcoming = _next(steps, deferred) if following is not None else None
        yield (
            Step(current.deal.pieces[rank], current.deal.shape, num_following, current.deal.num_batches),
            current,
        )
        if following is None and deferred.error is not None:
            _end(messages, deferred)
        current, following = following, upcoming


def _next(steps: Iterator[Read], deferred: DeferredError) -> Read | None:
    if deferred.error is None:
        with deferred:
            return next(steps, None)
    return None


def _end(messages: Messages | None, deferred: DeferredError) -> None:
    """Tell the others that no step comes, and raise what was the reason if there is one."""
    if messages is not None:
        messages.send_word(Kind.END if deferred.error is None else Kind.FAILURE)
    deferred.raise_now()
